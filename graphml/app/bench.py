"""`graphml bench`: tokens per second in llama-bench's words, beside other engines, and what bounds them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from graphml import settings
from graphml.app import machine
from graphml.app.bench_options import (
    Backends,
    Both,
    CacheK,
    CacheV,
    Delay,
    Depths,
    Generated,
    Hub,
    LogicalBatch,
    Models,
    NoWarmUp,
    Output,
    OutputError,
    Parallel,
    Peer,
    PeerPython,
    Prompts,
    Quants,
    Repetitions,
    Shapes,
    Threads,
    Types,
    UnitBatch,
)
from graphml.app.console import Bars, write_json
from graphml.app.opening import find
from graphml.engine import discovery
from graphml.errors import UsageError
from graphml.inspect.bench import compare as comparing
from graphml.inspect.bench import plan
from graphml.inspect.bench.describe import environment
from graphml.inspect.bench.job import Job
from graphml.inspect.bench.model_file import bench_model
from graphml.inspect.bench.ranges import pairs, whole_numbers, words
from graphml.inspect.bench.spell import FORMATS

bench = typer.Typer(add_completion=False, pretty_exceptions_enable=False, invoke_without_command=True)


@bench.callback()
def run(
    context: typer.Context,
    model: Models = None,
    hf: Hub = None,
    shape: Shapes = None,
    type: Types = None,
    n_prompt: Prompts = None,
    n_gen: Generated = None,
    pg: Both = None,
    n_depth: Depths = None,
    parallel: Parallel = None,
    batch_size: LogicalBatch = None,
    ubatch_size: UnitBatch = None,
    threads: Threads = None,
    cache_type_k: CacheK = None,
    cache_type_v: CacheV = None,
    quant: Quants = None,
    backend: Backends = "cpu",
    peer: Peer = None,
    peer_python: PeerPython = None,
    repetitions: Repetitions = 5,
    no_warmup: NoWarmUp = False,
    delay: Delay = 0.0,
    output: Output = "md",
    output_err: OutputError = None,
) -> None:
    """Measure prompt processing and generation, as llama-bench does.

    Values given several times, as lists (1,2) or as ranges (1-4, 512-2048+512, 1-32*2) are measured in all
    combinations.
    """
    if context.invoked_subcommand is not None:
        return
    for option, name in (("-o", output), ("-oe", output_err)):
        if name is not None and name not in FORMATS:
            raise UsageError(f"{option}: wanted one of {', '.join(FORMATS)}; got {name!r}")
    tests = plan.tests(
        whole_numbers("-p", n_prompt or ["512"]),
        whole_numbers("-n", n_gen or ["128"]),
        pairs("-pg", pg or []),
        whole_numbers("-d", n_depth or ["0"]),
        whole_numbers("-npl", parallel or ["1"], 1),
    )
    if not tests:
        raise UsageError("wanted tokens to measure: -p, -n or -pg")
    backends = words([backend])
    if not backends:
        raise UsageError("--backend: wanted at least one backend")
    with Bars() as bars:
        wanted = plan.settings(
            _models(model, hf, shape, type, bars),
            whole_numbers("-t", threads or [str(_default_threads())], 1),
            whole_numbers("-b", batch_size or ["2048"], 1),
            whole_numbers("-ub", ubatch_size or ["512"], 1),
            _cache_types(cache_type_k, cache_type_v),
            words(quant or []) or [""],
        )
        job = Job(
            wanted,
            tests,
            [("graphml", name) for name in backends] + [(name, "cpu") for name in words([peer or ""])],
            environment(machine.cpu_name()),
            machine.read_bandwidth,
            peer_python or sys.executable,
            repetitions,
            not no_warmup,
            delay,
            hashed=not {output, output_err} <= {"md", None},
        )
        shown = _shown(wanted, "ratio" if len(job.engines) > 1 else "")
        found = job.rows(bars.report)
        if output_err is not None:
            kept = list(found)
            sys.stderr.writelines(FORMATS[output_err](kept, shown))
            found = iter(kept)
        for piece in FORMATS[output](found, shown):
            sys.stdout.write(piece)
            sys.stdout.flush()


def _models(
    names: list[str] | None,
    hubs: list[str] | None,
    shapes: list[str] | None,
    types: list[str] | None,
    bars: Bars,
) -> list[str]:
    """The paths of all models that are named, fetched or made; the default model where none is."""
    found = [find(name, None, bars) for name in names or []] + [find(None, name, bars) for name in hubs or []]
    kinds = words(types or []) or ["Q4_K_M"]
    found += [bench_model(shape, kind, bars.report) for shape in words(shapes or []) for kind in kinds]
    if types and not shapes:
        raise UsageError("--type: wanted --shape too, whose model is to be made")
    return [str(path) for path in found or [find(None, None, bars)]]


def _cache_types(keys: list[str] | None, values: list[str] | None) -> list[tuple[str, str]]:
    """Pairs of types; where one option is left out, the other's."""
    k, v = words(keys or []), words(values or [])
    if k and v:
        return [(one, other) for one in k for other in v]
    return [(one, one) for one in k or v or ["f16"]]


def _default_threads() -> int:
    """The physical cores that this process may use, or what GRAPHML_THREADS says."""
    facts = discovery.backend("cpu").describe()
    return settings.threads() or int(facts.get("threads", 1))


def _shown(wanted: list[plan.Setting], ratio: str) -> list[str]:
    """The settings that become columns: those that have several values, or another than the usual."""
    usual = plan.Setting("", "", "", 0)
    names = ("n_batch", "n_ubatch", "type_k", "type_v", "quant")
    shown = [name for name in names if {getattr(one, name) for one in wanted} != {getattr(usual, name)}]
    return [*shown, ratio]


Tolerance = Annotated[
    str,
    typer.Option(
        "--fail-over", metavar="3%", help="Exit with 1 if a row is slower by more, beyond the spread."
    ),
]


@bench.command("compare")
def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="Results from before.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="Results from after.")],
    fail_over: Tolerance = "3%",
    by: Annotated[
        str, typer.Option("--by", help="t/s, or ratio: to the peer, which a slower machine leaves.")
    ] = "t/s",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare two results of `graphml bench -o json` (or llama-bench's), row by row."""
    tolerance = _percent(fail_over)
    changes = comparing.compare(comparing.read(a), comparing.read(b), by)
    if json:
        write_json({
            "tolerance": tolerance,
            "rows": [
                {"model": one.model, "backend": one.backend, "threads": one.threads, "test": one.test,
                 "a": one.a, "b": one.b, "change": one.change, "verdict": comparing.verdict(one, tolerance)}
                for one in changes
            ],
        })  # fmt: skip
    else:
        print(comparing.markdown(changes, tolerance), end="")
    if any(one.slower(tolerance) for one in changes):
        raise typer.Exit(1)


def _percent(text: str) -> float:
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)\s*%?", text.strip())
    if match is None:
        raise UsageError(f"--fail-over: wanted a percentage such as 3%; got {text!r}")
    return float(match[1]) / 100
