"""Runs a named suite, compares each case with its goal, prints one table: `python -m benchmarks.suite NAME`.

Its options are those of `graphml bench`, as far as the cases leave them open.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import tee

import typer

from benchmarks.serve_run import FORMATS as SERVE_FORMATS
from benchmarks.serve_run import ServeJob, run_loads
from benchmarks.suite_run import Judged, Models, markdown, run_cases
from benchmarks.suites import CLIENTS, ServeCase, Suite, chosen, serve_cases, suite_named
from graphml.bench import test_plan as plan
from graphml.bench.bench_options import (
    LengthOptions,
    ModelOptions,
    OutputOptions,
    RunOptions,
    SettingOptions,
)
from graphml.bench.job import Job
from graphml.bench.made_models import bench_model
from graphml.bench.row_formats import FORMATS
from graphml.cli.bench import default_model, default_threads, job_of, models_of
from graphml.cli.options.typer_options import flags_given, grouped
from graphml.cli.terminal.console import Bars, write_both
from graphml.errors import GraphmlError, UsageError
from graphml.options.option_fields import option, options_of, same

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
SCALES = ("-p", "-n", "-npl")
"""Options that scale loads: tokens of a prompt, tokens after it, clients."""


@dataclass(frozen=True)
class CaseOptions:
    """Which cases, on how many threads."""

    threads: tuple[int, ...] = same(SettingOptions, "threads")
    case: tuple[str, ...] = option(
        (), "Only the cases of such a name, as '*Q4_0'.", "--case", metavar="PATTERN", on_command_line=str,
        repeated=True,
    )  # fmt: skip


@app.command()
@grouped
def run(
    context: typer.Context,
    name: str,
    cases: CaseOptions,
    which: ModelOptions,
    lengths: LengthOptions,
    how: RunOptions,
    written: OutputOptions,
) -> None:
    """Measure the cases of a suite."""
    asked = flags_given(context, LengthOptions, RunOptions)
    suite = suite_named(name)
    _check(suite, asked)
    loads = _loads(lengths, how, cases, asked) if suite.loads else []
    if loads:
        _check_output(written)
    job, rounds = job_of(which, lengths, how, written), how.repetitions if "-r" in asked else None
    with Bars() as bars:
        models = _models(suite, which, bars)
        counts = list(cases.threads) or [default_threads()]
        if loads:
            served = ServeJob(how.backend[0], job.environment, rounds, job.warm, job.arch)
            ours, theirs = tee(run_loads(loads, counts, models, served, bars.report))
            other = SERVE_FORMATS[written.output_err](theirs) if written.output_err else iter(())
            write_both(SERVE_FORMATS[written.output](ours), other)
        else:
            _run_cases(suite_named(name, cases.case or ["*"]), counts, models, job, rounds, written, bars)


def _check(suite: Suite, asked: Sequence[str]) -> None:
    """Refuse what a suite's cases say themselves, and would not heed."""
    free = SCALES if suite.loads else ()
    fixed = [one.flags[-1] for one in options_of(LengthOptions).values()]
    if wrong := [flag for flag in asked if flag in fixed and flag not in free]:
        raise UsageError(f"{suite.name}: wanted no {', '.join(wrong)}: its cases say what is measured")


def _loads(
    lengths: LengthOptions, how: RunOptions, cases: CaseOptions, asked: Sequence[str]
) -> list[ServeCase]:
    """The loads of these clients and lengths whose names match; UsageError for what no load has."""
    for flag, values in (("-p", lengths.n_prompt), ("-n", lengths.n_gen)):
        least = 2 if flag == "-n" else 1
        if flag in asked and (len(values) != 1 or values[0] < least):
            got = ", ".join(map(str, values))
            raise UsageError(f"{flag}: wanted one number of {least} or more for serve; got {got}")
    if how.peer or len(how.backend) > 1:
        raise UsageError("serve: wanted one backend and no --peer; graphml's engine is measured alone")
    scales = {
        name: getattr(lengths, name)[0]
        for flag, name in (("-p", "n_prompt"), ("-n", "n_gen"))
        if flag in asked
    }
    clients = lengths.parallel if "-npl" in asked else CLIENTS
    return chosen(serve_cases(clients, **scales), cases.case or ["*"])


def _check_output(written: OutputOptions) -> None:
    """UsageError for formats that rows of loads do not have."""
    for flag, name in (("-o", written.output), ("-oe", written.output_err)):
        if name is not None and name not in SERVE_FORMATS:
            raise UsageError(f"{flag}: wanted {' or '.join(SERVE_FORMATS)} of serve; got {name!r}")


def _models(suite: Suite, which: ModelOptions, bars: Bars) -> Models:
    """Shape and type -> path of the suite's model: the one that was named, for all cases, or its own."""
    named = models_of(which, bars)
    if len(named) > 1:
        raise UsageError(f"{suite.name}: wanted one model for all cases, or none; got {len(named)}")

    def model(shape: str, type: str) -> str:
        if named:
            return named[0]
        return str(bench_model(shape, type, bars.report)) if shape else default_model(which, bars)

    return model


def _run_cases(
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

    def spell(name: str | None, judged: Iterator[Judged]) -> Iterator[str]:
        if name == "md":
            return markdown(judged)
        rows = (row for one in judged for row in (one.named, *one.others))
        return FORMATS[name](rows, ()) if name else iter(())

    ours, theirs = tee(run_cases(suite.cases, threads, models, job, repetitions, bars.report))
    write_both(spell(written.output, ours), spell(written.output_err, theirs))


if __name__ == "__main__":
    try:
        app()
    except GraphmlError as error:
        sys.exit(f"suite: {error}")
