"""`graphml bench`: tokens per second in llama-bench's words, beside other engines, and what bounds them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import tee
from pathlib import Path
from typing import TypeVar

import typer

import graphml
from graphml import settings
from graphml.bench import plots
from graphml.bench import test_plan as plan
from graphml.bench.bench_options import (
    LengthOptions,
    ModelOptions,
    OutputOptions,
    RunOptions,
    ServerOptions,
    SettingOptions,
)
from graphml.bench.describe import environment
from graphml.bench.job import Job
from graphml.bench.made_models import bench_model
from graphml.bench.result_rows import Row
from graphml.bench.results_page import page
from graphml.bench.row_formats import FORMATS, Spell
from graphml.bench.serve_run import ServeJob
from graphml.bench.suite_run import Judged, Models, run_cases
from graphml.bench.suite_run import markdown as suite_markdown
from graphml.bench.suites import ServeCase, Suite, suite_named
from graphml.cli import bench_serve, bench_server, machine
from graphml.cli.bench_compare import compare
from graphml.cli.checks import check_backends, check_file, check_places
from graphml.cli.console import Bars, remark
from graphml.cli.opening import find
from graphml.cli.options import Source
from graphml.cli.two_streams import write_both
from graphml.cli.typer_options import flags_given, grouped
from graphml.errors import BackendError, UsageError
from graphml.inspect.profile import profile
from graphml.loading import discovery
from graphml.option_fields import options_of

T = TypeVar("T")
bench = typer.Typer(add_completion=False, pretty_exceptions_enable=False, invoke_without_command=True)


@bench.callback()
@grouped
def run(
    context: typer.Context,
    which: ModelOptions,
    lengths: LengthOptions,
    setting: SettingOptions,
    how: RunOptions,
    servers: ServerOptions,
    written: OutputOptions,
) -> None:
    """Measure prompt processing and generation, as llama-bench does.

    Values given several times, as lists (1,2) or as ranges (1-4, 512-2048+512, 1-32*2) are measured in all
    combinations.
    """
    if context.invoked_subcommand is not None:
        return
    asked = flags_given(context, ModelOptions, LengthOptions, SettingOptions, RunOptions)
    bench_server.check_server(servers, asked, flags_given(context, ServerOptions), written)
    if servers.server:
        bench_server.run_servers(servers, lengths, asked, how, written)
        return
    if written.plot is not None:
        plots.ready(written.plot)
    job = _job(lengths, how, hashed=not {written.output, written.output_err} <= {"md", None})
    job = replace(job, arch="" if which.arch is None else str(which.arch))
    check_file("--arch", None if which.arch is None else Path(which.arch))
    if "--type" in asked and not which.shape:
        raise UsageError("--type: wanted --shape too, whose model is to be made")
    if how.peer_python is not None and not how.peer and not (how.suite and suite_named(how.suite).peers):
        raise UsageError("--peer-python: wanted --peer too, whose Python it is")
    loads: list[ServeCase] = []
    if how.suite is not None:
        suite = suite_named(how.suite)
        _check_suite(suite, asked)
        if suite.loads:
            loads = bench_serve.loads(lengths, how, asked)
            bench_serve.check_output(written)
    for rules in setting.place:
        check_places(rules)
    with Bars() as bars:
        counts = list(setting.threads) or [_default_threads()]
        given = _models(which, bars)
        rounds = how.repetitions if "-r" in asked else None
        if how.suite is not None:
            models = _suite_models(how.suite, which, given, bars)
            if loads:
                served = ServeJob(how.backend[0], job.environment, rounds, job.warm, job.arch)
                bench_serve.run_serve(loads, counts, models, served, written, bars)
            else:
                _run_suite(
                    suite_named(how.suite, how.case or ["*"]), counts, models, job, rounds, written, bars
                )
        elif how.case:
            raise UsageError("--case: wanted --suite too, of whose cases it chooses some")
        else:
            paths = given or [str(find(None, _source(which), bars))]
            _run_tests(setting.combined(paths, counts), job, written, bars)


def _job(lengths: LengthOptions, how: RunOptions, hashed: bool) -> Job:
    """The tests, the sides that run them, and how; its settings are still to come."""
    check_backends("--backend", ",".join(how.backend))
    if not lengths.tests:
        raise UsageError("wanted tokens to measure: -p, -n or -pg")
    return Job(
        [],
        lengths.tests,
        [("graphml", name) for name in how.backend] + [(name, "cpu") for name in how.peer],
        environment(machine.cpu_name()),
        machine.read_bandwidth,
        how.peer_python or sys.executable,
        how.repetitions,
        not how.no_warmup,
        how.delay,
        hashed=hashed,
        checked=not how.no_check,
    )


def _check_suite(suite: Suite, asked: list[str]) -> None:
    """Refuse what a suite's cases say themselves, and would not heed."""
    fixed = [one.flags[-1] for kind in (LengthOptions, SettingOptions) for one in options_of(kind).values()]
    free = ("-t", *(bench_serve.SCALES if suite.loads else ()))
    wrong = [flag for flag in asked if flag in fixed and flag not in free]
    if wrong:
        raise UsageError(
            f"--suite {suite.name}: wanted no {', '.join(wrong)}: its cases say what is measured"
        )


def _run_tests(settings: list[plan.Setting], job: Job, written: OutputOptions, bars: Bars) -> None:
    """Measure every test in every setting, print the rows and draw them."""
    shown = _shown(settings, "ratio" if len(job.engines) > 1 else "")
    kept: list[Row] = []
    ours, theirs = tee(_each(replace(job, settings=settings).rows(bars.report), kept.append))
    other = _spell(written.output_err)(theirs, shown) if written.output_err else iter(())
    write_both(_spell(written.output)(ours, shown), other)
    if written.plot is not None:
        _draw(written.plot, kept, replace(settings[0], arch=job.arch), job, bars)


def _spell(name: str) -> Spell:
    """What makes text of rows; a page says what was typed, too."""
    return partial(page, commands=[_typed()]) if name == "html" else FORMATS[name]


def _typed() -> str:
    """The command line, of paths only the names: where things lie is nobody's business."""

    def public(argument: str) -> str:
        option, mark, value = argument.rpartition("=")
        inside = "/" in value or "\\" in value
        return option + mark + (Path(value).name if inside and Path(value).exists() else value)

    return shlex.join(["graphml", *map(public, sys.argv[1:])])


def _suite_models(name: str, which: ModelOptions, given: list[str], bars: Bars) -> Models:
    """Shape and type -> path of a suite's model: the one that was given, for all cases, or its own."""
    if len(given) > 1:
        raise UsageError(f"--suite {name}: wanted one model for all cases, or none; got {len(given)}")

    def model(shape: str, type: str) -> str:
        if given:
            return given[0]
        return str(bench_model(shape, type, bars.report) if shape else find(None, _source(which), bars))

    return model


def _run_suite(
    suite: Suite,
    threads: list[int],
    models: Models,
    job: Job,
    repetitions: int | None,
    written: OutputOptions,
    bars: Bars,
) -> None:
    """Measure a suite's cases, and print what came of it."""
    if suite.peers and len(job.engines) == 1:
        job = replace(job, engines=[*job.engines, (plan.LLAMA_CPP, "cpu")])
    found = run_cases(suite.cases, threads, models, job, repetitions, bars.report)

    def spell(name: str | None, judged: Iterator[Judged]) -> Iterator[str]:
        if name == "md":
            return suite_markdown(judged)
        rows = (row for one in judged for row in (one.named, *one.others * (name != "html")))
        return _spell(name)(rows, ()) if name else iter(())

    kept: list[Row] = []

    def keep(one: Judged) -> None:
        if not one.case.busy:  # which is no point of a curve
            kept.extend((one.row, *one.others))

    ours, theirs = tee(_each(found, keep))
    write_both(spell(written.output, ours), spell(written.output_err, theirs))
    if written.plot is not None:
        for path in [*plots.draw_bars(written.plot, kept), *plots.draw_speeds(written.plot, kept)]:
            remark(f"drew {path}")


def _each(found: Iterator[T], do: Callable[[T], None]) -> Iterator[T]:
    for one in found:
        do(one)
        yield one


def _draw(folder: Path, rows: list[Row], setting: plan.Setting, job: Job, bars: Bars) -> None:
    """The pictures: of the rows, and the rooflines of the first setting's kernels on each backend."""
    drawn = [*plots.draw_bars(folder, rows), *plots.draw_speeds(folder, rows)]
    for backend in (name for engine, name in job.engines if engine == "graphml"):
        try:
            drawn += _rooflines(folder, rows, replace(setting, backend=backend), bars)
        except BackendError as error:  # programs that cannot be timed
            remark(f"--plot: no roofline of {backend}: {error}")
    for path in drawn:
        remark(f"drew {path}")


def _rooflines(folder: Path, rows: list[Row], setting: plan.Setting, bars: Bars) -> list[Path]:
    """A backend's rooflines, below the roofs of its device: of one that is not the host no arithmetic."""
    with graphml.load(
        setting.model, setting.opened, setting.threads, kv=setting.kv, n_batch=setting.n_ubatch,
        place=setting.place, gpu_layers=None if setting.gpu_layers < 0 else setting.gpu_layers,
        quant=setting.quant or None, progress=bars.report,
        arch=Path(setting.arch) if setting.arch else None,
    ) as model:  # fmt: skip
        room = max(model.n_ctx - 16, 1)
        found = profile(model, min(512, room // 2), min(16, room // 4), 2)
    here = [row for row in rows if (row.backends, row.n_threads) == (setting.backend, setting.threads)]
    bandwidth, flops = 1e9 * max(row.bandwidth_gb_s for row in here), 0.0
    on_host = here[0].device == here[0].cpu_info
    if on_host:
        bandwidth = max(bandwidth, machine.read_bandwidth(setting.threads))
        flops = machine.multiply_rate(setting.threads)
    return plots.draw_rooflines(folder, found, setting.backend, bandwidth, flops)


def _models(given: ModelOptions, bars: Bars) -> list[str]:
    """The paths of all models that are named, fetched or made."""
    found = [find(name, _source(given), bars) for name in given.model]
    found += [find(None, _source(given, name), bars) for name in given.hf]
    found += [bench_model(shape, kind, bars.report) for shape in given.shape for kind in given.type]
    return [str(path) for path in found]


def _source(given: ModelOptions, hf: str | None = None) -> Source:
    """How one of the models is looked for."""
    return Source(hf, given.offline)


def _default_threads() -> int:
    """The physical cores that this process may use, or what GRAPHML_THREADS says."""
    facts = discovery.backend("cpu").describe()
    return settings.threads() or int(facts.get("threads", 1))


def _shown(wanted: list[plan.Setting], ratio: str) -> list[str]:
    """The settings that become columns: those that have several values, or another than the usual."""
    usual = plan.Setting("", "", "", 0)
    names = ("n_batch", "n_ubatch", "type_k", "type_v", "quant", "place", "gpu_layers")
    shown = [name for name in names if {getattr(one, name) for one in wanted} != {getattr(usual, name)}]
    return [*shown, *[ratio] * bool(ratio)]


bench.command("compare")(compare)
