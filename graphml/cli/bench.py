"""`graphml bench`: tokens per second in llama-bench's words, beside other engines, and what bounds them."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import tee
from pathlib import Path

import typer

from graphml import settings
from graphml.bench import test_plan as plan
from graphml.bench.bench_options import (
    LengthOptions,
    MeasuredServers,
    ModelOptions,
    OutputOptions,
    RunOptions,
    SettingOptions,
)
from graphml.bench.describe import environment
from graphml.bench.job import Job
from graphml.bench.made_models import bench_model
from graphml.bench.row_formats import FORMATS
from graphml.cli import bench_server
from graphml.cli.bench_compare import compare
from graphml.cli.help_pages import HelpedGroup
from graphml.cli.options.checks import check_backends, check_file, check_places
from graphml.cli.options.opening import find
from graphml.cli.options.options import ModelSource
from graphml.cli.options.typer_options import flags_given, grouped
from graphml.cli.terminal import machine
from graphml.cli.terminal.console import Bars, write_both
from graphml.errors import UsageError
from graphml.loading import discovery

bench = typer.Typer(
    cls=HelpedGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    invoke_without_command=True,
)


@bench.callback()
@grouped
def run(
    context: typer.Context,
    which: ModelOptions,
    lengths: LengthOptions,
    setting: SettingOptions,
    how: RunOptions,
    servers: MeasuredServers,
    written: OutputOptions,
) -> None:
    """Measure prompt processing and generation, as llama-bench does.

    Values given several times, as lists (1,2) or as ranges (1-4, 512-2048+512, 1-32*2) are measured in all
    combinations.
    """
    if context.invoked_subcommand is not None:
        return
    asked = flags_given(context, ModelOptions, LengthOptions, SettingOptions, RunOptions)
    bench_server.check_server(servers, asked, flags_given(context, MeasuredServers), written)
    if servers.server:
        bench_server.run_servers(servers, lengths, asked, how, written)
        return
    check_file("--arch", None if which.arch is None else Path(which.arch))
    if "--type" in asked and not which.shape:
        raise UsageError("--type: wanted --shape too, whose model is to be made")
    if how.peer_python is not None and not how.peer:
        raise UsageError("--peer-python: wanted --peer too, whose Python it is")
    for rules in setting.place:
        check_places(rules)
    job = job_of(which, lengths, how, written)
    with Bars() as bars:
        counts = list(setting.threads) or [default_threads()]
        paths = models_of(which, bars) or [default_model(which, bars)]
        settings = setting.combined(paths, counts)
        shown = _shown(settings, "ratio" if len(job.engines) > 1 else "")
        ours, theirs = tee(replace(job, settings=settings).rows(bars.report))
        other = FORMATS[written.output_err](theirs, shown) if written.output_err else iter(())
        write_both(FORMATS[written.output](ours, shown), other)


def job_of(which: ModelOptions, lengths: LengthOptions, how: RunOptions, written: OutputOptions) -> Job:
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
        hashed=not {written.output, written.output_err} <= {"md", None},
        arch="" if which.arch is None else str(which.arch),
        checked=not how.no_check,
    )


def models_of(model_options: ModelOptions, bars: Bars) -> list[str]:
    """The paths of all models that are named, fetched or made."""
    paths = [find(name, _source(model_options), bars) for name in model_options.model]
    paths += [find(None, _source(model_options, name), bars) for name in model_options.hf]
    paths += [
        bench_model(shape, kind, bars.report) for shape in model_options.shape for kind in model_options.type
    ]
    return [str(path) for path in paths]


def default_model(model_options: ModelOptions, bars: Bars) -> str:
    """The path of the model that commands use where none is named."""
    return str(find(None, _source(model_options), bars))


def _source(model_options: ModelOptions, hf: str | None = None) -> ModelSource:
    """How one of the models is looked for."""
    return ModelSource(None, hf, model_options.offline)


def default_threads() -> int:
    """The physical cores that this process may use, or what GRAPHML_THREADS says."""
    facts = discovery.backend("cpu").describe()
    return settings.threads() or int(facts.get("threads", 1))


def _shown(wanted: list[plan.SideParameters], ratio: str) -> list[str]:
    """The settings that become columns: those that have several values, or another than the usual."""
    usual = plan.SideParameters("", "", "", 0)
    names = ("n_batch", "n_ubatch", "type_k", "type_v", "quant", "place", "gpu_layers")
    shown = [
        name for name in names if {getattr(setting, name) for setting in wanted} != {getattr(usual, name)}
    ]
    return [*shown, *[ratio] * bool(ratio)]


bench.command("compare")(compare)
