"""`graphml bench`: tokens per second in llama-bench's words, beside other engines, and what bounds them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import tee, zip_longest
from pathlib import Path

import typer

import graphml
from graphml import settings
from graphml.app import machine
from graphml.app.bench_compare import compare
from graphml.app.bench_options import (
    Backends,
    Both,
    CacheK,
    CacheV,
    Cases,
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
    Plots,
    Prompts,
    Quants,
    Repetitions,
    Shapes,
    SuiteName,
    Threads,
    Types,
    UnitBatch,
)
from graphml.app.console import Bars, remark
from graphml.app.opening import find
from graphml.engine import discovery
from graphml.errors import UsageError
from graphml.inspect.bench import plan, plots
from graphml.inspect.bench.describe import environment
from graphml.inspect.bench.job import Job
from graphml.inspect.bench.model_file import bench_model
from graphml.inspect.bench.ranges import pairs, whole_numbers, words
from graphml.inspect.bench.rows import Row
from graphml.inspect.bench.spell import FORMATS
from graphml.inspect.bench.suite_run import Judged, run_cases
from graphml.inspect.bench.suite_run import markdown as suite_markdown
from graphml.inspect.bench.suites import Suite, suite_named
from graphml.inspect.profile import profile

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
    repetitions: Repetitions = None,
    no_warmup: NoWarmUp = False,
    delay: Delay = 0.0,
    suite: SuiteName = None,
    case: Cases = None,
    plot: Plots = None,
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
    backends = words([backend])
    if not tests or not backends:
        raise UsageError(
            "wanted tokens to measure: -p, -n or -pg" if backends else "--backend: wanted at least one"
        )
    with Bars() as bars:
        job = Job(
            [],
            tests,
            [("graphml", name) for name in backends] + [(name, "cpu") for name in words([peer or ""])],
            environment(machine.cpu_name()),
            machine.read_bandwidth,
            peer_python or sys.executable,
            repetitions or 5,
            not no_warmup,
            delay,
            hashed=not {output, output_err} <= {"md", None},
        )
        default = [str(_default_threads())]
        counts = whole_numbers("-t", threads or default, 1)
        given = _models(model, hf, shape, type, bars)
        if suite is not None:
            chosen = suite_named(suite, case or ["*"])
            _run_suite(chosen, counts, given, job, repetitions, (output, output_err), bars)
            return
        wanted = plan.settings(
            given or [str(find(None, None, bars))],
            counts,
            whole_numbers("-b", batch_size or ["2048"], 1),
            whole_numbers("-ub", ubatch_size or ["512"], 1),
            _cache_types(cache_type_k, cache_type_v),
            words(quant or []) or [""],
        )
        shown = _shown(wanted, "ratio" if len(job.engines) > 1 else "")
        kept: list[Row] = []
        ours, theirs = tee(_kept(replace(job, settings=wanted).rows(bars.report), kept))
        _write(FORMATS[output](ours, shown), FORMATS[output_err](theirs, shown) if output_err else iter(()))
        if plot is not None:
            _draw(plot, kept, wanted[0], bars)


def _run_suite(
    suite: Suite,
    threads: list[int],
    given: list[str],
    job: Job,
    repetitions: int | None,
    output: tuple[str, str | None],
    bars: Bars,
) -> None:
    """Measure a suite's cases on its models, or all on the one that was given, and print what came of it."""
    if len(given) > 1:
        raise UsageError(f"--suite {suite.name}: wanted one model for all cases, or none; got {len(given)}")

    def model(shape: str, type: str) -> str:
        if given:
            return given[0]
        return str(bench_model(shape, type, bars.report) if shape else find(None, None, bars))

    if suite.peers and len(job.engines) == 1:
        job = replace(job, engines=[*job.engines, (plan.LLAMA_CPP, "cpu")])
    found = run_cases(suite.cases, threads, model, job, repetitions, bars.report)

    def spell(name: str | None, judged: Iterator[Judged]) -> Iterator[str]:
        if name == "md":
            return suite_markdown(judged)
        return FORMATS[name]((one.named for one in judged), ()) if name else iter(())

    ours, theirs = tee(found)
    _write(spell(output[0], ours), spell(output[1], theirs))


def _kept(found: Iterator[Row], kept: list[Row]) -> Iterator[Row]:
    for row in found:
        kept.append(row)
        yield row


def _write(out: Iterator[str], error: Iterator[str]) -> None:
    """Write the pieces to stdout and to stderr as they come."""
    for piece, other in zip_longest(out, error, fillvalue=""):
        for stream, text in ((sys.stdout, piece), (sys.stderr, other)):
            stream.write(text)
            stream.flush()


def _draw(folder: Path, rows: list[Row], setting: plan.Setting, bars: Bars) -> None:
    """The pictures: of the rows, and the roofline of the first setting's kernels."""
    with graphml.load(
        setting.model, threads=setting.threads, kv=setting.type_k, n_batch=setting.n_ubatch,
        quant=setting.quant or None, progress=bars.report,
    ) as model:  # fmt: skip
        room = max(model.n_ctx - 16, 1)
        found = profile(model, min(512, room // 2), min(16, room // 4), 2)
    best = max(row.bandwidth_gb_s for row in rows if row.n_threads == setting.threads)
    bandwidth = max(1e9 * best, machine.read_bandwidth(setting.threads))
    flops = machine.multiply_rate(setting.threads)
    for path in plots.draw(folder, rows, found, bandwidth, flops):
        remark(f"drew {path}")


def _models(
    names: list[str] | None,
    hubs: list[str] | None,
    shapes: list[str] | None,
    types: list[str] | None,
    bars: Bars,
) -> list[str]:
    """The paths of all models that are named, fetched or made."""
    found = [find(name, None, bars) for name in names or []] + [find(None, name, bars) for name in hubs or []]
    kinds = words(types or []) or ["Q4_K_M"]
    found += [bench_model(shape, kind, bars.report) for shape in words(shapes or []) for kind in kinds]
    if types and not shapes:
        raise UsageError("--type: wanted --shape too, whose model is to be made")
    return [str(path) for path in found]


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
    return [*shown, *[ratio] * bool(ratio)]


bench.command("compare")(compare)
