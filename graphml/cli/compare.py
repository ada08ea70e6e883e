"""`graphml compare`: every value of a run against that of another backend or of other fusions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from graphml.cli.options import compared_runs as numbers
from graphml.cli.options import options
from graphml.cli.options.checks import check_target
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import write_file, write_json
from graphml.errors import UsageError
from graphml.inspect.bisect.findings import told
from graphml.inspect.compare.compare import ComparedValue, as_markdown, with_errors, wrong_copies
from graphml.inspect.compare.compare import compare as compare_runs
from graphml.inspect.compare.observe import observe, save
from graphml.inspect.dumps.without_weights import describe_model


@grouped
def compare(
    opening: options.Compared,
    run_options: numbers.ComparedOptions,
    model: options.Model = None,
    worst: Annotated[
        int, typer.Option("--worst", min=0, help="Print only the N values that differ most; 0: all.")
    ] = 0,
    saving: Annotated[
        Path | None,
        typer.Option(
            "--save", metavar="RUN.npz", help="Save the values of A in a file, without a comparison."
        ),
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Also write A's graph with these errors, for the viewer."),
    ] = None,
) -> None:
    """Compare every intermediate value of two runs of a model, on two backends or with other fusions."""
    numbers.check_format(run_options.format)
    if saving is not None and (worst or graph is not None or run_options.fuse_b):
        raise UsageError("--save: wanted no --worst, --graph and --fuse-b: A's run is written, not compared")
    check_target("--save", saving, ".npz")
    check_target("--graph", graph, ".json")
    judged, judging = run_options.backends
    alone = run_options.backend.strip() == judging and not opening.place
    if saving is None and alone and run_options.fuse_a == run_options.fuse_b:
        raise UsageError(
            f"--backend: wanted another than {judging}, two of them as A,B, or --fuse-b; "
            f"got {judging} alone, which is what the others are compared with"
        )
    with numbers.opened(model, opening, run_options, judged, None if saving else judging) as sides:
        assert sides.a is not None
        run = observe(sides.a.executor, sides.ids, sides.options_a)
        if saving is not None:
            save(run, saving)
            return
        assert sides.b is not None
        other_run = observe(sides.b.executor, sides.ids, sides.options_b)
        path = str(sides.b.path)
        rows = compare_runs(run, other_run)
        if graph is not None:
            many = 1 if rows[-1].step == "decode" else sides.a.executor.n_batch
            document = describe_model(sides.a.executor, many, options=sides.options_a)
            write_file(graph, json.dumps(with_errors(document, rows), allow_nan=False) + "\n", "--graph")
    copies = wrong_copies(rows)
    if worst:
        rows = sorted(rows, key=lambda row: -row.difference.nmse)[:worst]
    if run_options.format == "json":
        write_json(
            {
                "model": path, "ids": sides.ids, "a": dict(run.facts), "b": dict(other_run.facts),
                "values": [row.as_json() for row in rows],
            }
        )  # fmt: skip
        return
    print(f"# {path}: {told(run)} against {told(other_run)}, {len(sides.ids)} tokens\n")
    print(as_markdown(rows))
    print(copies + _ending(rows))


def _ending(rows: list[ComparedValue]) -> str:
    top = max(rows, key=lambda row: row.difference.nmse)
    odd = sum(1 for row in rows if row.difference.nan[0] or row.difference.inf[0])
    return (
        f"{len(rows)} values; the largest NMSE is {top.difference.nmse:.1e} at {top.node} ({top.step}); "
        f"{odd or 'none'} with NaN or infinity in A"
    )
