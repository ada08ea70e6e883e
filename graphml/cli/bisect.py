"""`graphml bisect`: the first value that is wrong by itself, what it is made of, and a repro of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from graphml.cli.options import compared_runs as numbers
from graphml.cli.options import options
from graphml.cli.options.checks import check_file, check_folder, check_limit
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import write_json
from graphml.errors import UsageError
from graphml.inspect.bisect import repro
from graphml.inspect.bisect.bisect import Finding, check_alike, examine
from graphml.inspect.bisect.bisect import bisect as bisect_run
from graphml.inspect.bisect.findings import as_json, as_text
from graphml.inspect.bisect.judging import Judge
from graphml.inspect.compare.observe import Observation, observe, restore
from graphml.inspect.compare.route import TOKENS
from graphml.system.progress_labels import size


@dataclass(frozen=True)
class BisectOptions(numbers.ComparedOptions):
    """The same, B as the graph was written, and as many tokens as cross the borders of kernels and caches."""

    tokens: numbers.Tokens = TOKENS
    fuse_b: numbers.FuseB = "none"


@grouped
def bisect(
    opening: options.Compared,
    run_options: BisectOptions,
    model: options.Model = None,
    saved: Annotated[
        Path | None,
        typer.Option("--saved", metavar="RUN.npz", help="Values saved by `compare --save`, in place of A."),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option("--limit", min=0.0, metavar="NMSE", help="Tolerance of every value, as NMSE."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--repro", metavar="FOLDER", help="Folder for repro.py and repro.npz.")
    ] = None,
) -> None:
    """Find the first node whose result is wrong although its inputs are right. Exit code 1: there is one."""
    numbers.check_format(run_options.format)
    check_limit(limit)
    check_file("--saved", saved)
    check_folder("--repro", out)
    if saved is not None and (run_options.fuse_a or opening.place or run_options.prompt is not None):
        raise UsageError("--saved: wanted no --fuse-a, --place and --prompt: the run has its own")
    judged, judging = run_options.backends
    with numbers.opened(model, opening, run_options, None if saved else judged, judging) as sides:
        assert sides.b is not None
        executor = sides.b.executor
        if saved is not None:
            run = restore(saved, executor.weights)
            check_alike(run, executor)
            if len(run.ids) > executor.n_batch:
                got = run_options.tokens or "none"
                raise UsageError(f"--saved: wanted --tokens {len(run.ids)}, as the run has; got {got}")
            other = observe(executor, run.ids, sides.options_b, in_use=False)
            bisection = bisect_run(run, other, Judge(executor, sides.options_b, limit))
        else:
            assert sides.a is not None
            judge = Judge(executor, sides.options_b, limit, sides.a.executor.device)
            run, other, bisection = examine(sides.a.executor, sides.ids, sides.options_a, judge)
        files = _write(bisection.first, run, judging, out, opening.threads)
    if run_options.format == "json":
        write_json({**as_json(bisection), "a": dict(run.facts), "b": dict(other.facts), "repro": files})
    else:
        print(as_text(bisection, run, other), end="")
        for name in files:
            print(f"wrote {name} ({size(Path(name).stat().st_size)})")
    if bisection.findings:
        raise typer.Exit(1)


def _write(
    finding: Finding | None, run: Observation, judge: str, out: Path | None, threads: int | None
) -> list[str]:
    if out is None or finding is None or not finding.graph.nodes or finding.copied is not None:
        return []  # a copy happens between two devices: no graph of one reproduces it
    case = repro.ReproCase(finding.graph, finding.other, finding.arrays)
    backends = (
        judge if finding.graph is not finding.other else finding.backend or run.facts["backend"],
        judge,
    )
    title = f"{finding.node.name} ({finding.node.op.name}): {backends[0]} against {backends[1]}"
    return [str(path) for path in repro.write(case, backends, finding.limit, title, out, threads)]
