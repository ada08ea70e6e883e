"""`graphml bench --suite serve`: clients of one engine, in rows of their own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import tee

from graphml.bench.bench_options import LengthOptions, OutputOptions, RunOptions
from graphml.bench.serve_run import FORMATS, ServeJob, run_loads
from graphml.bench.suite_run import Models
from graphml.bench.suites import CLIENTS, ServeCase, chosen, serve_cases
from graphml.cli.console import Bars
from graphml.cli.two_streams import write_both
from graphml.errors import UsageError

SCALES = ("-p", "-n", "-npl")
"""Options that scale the loads: tokens of a prompt, tokens after it, clients."""


def loads(lengths: LengthOptions, how: RunOptions, asked: Sequence[str]) -> list[ServeCase]:
    """The cases of these clients and lengths whose names match; UsageError for what no load has."""
    for flag, values in (("-p", lengths.n_prompt), ("-n", lengths.n_gen)):
        if flag in asked and (len(values) != 1 or values[0] < (2 if flag == "-n" else 1)):
            least = "of 2 or more" if flag == "-n" else "of 1 or more"
            raise UsageError(
                f"{flag}: wanted one number {least} for --suite serve; got {', '.join(map(str, values))}"
            )
    if how.peer or len(how.backend) > 1:
        raise UsageError(
            "--suite serve: wanted one backend and no --peer; graphml's engine is measured alone"
        )
    given = {
        name: getattr(lengths, name)[0]
        for flag, name in (("-p", "n_prompt"), ("-n", "n_gen"))
        if flag in asked
    }
    clients = lengths.parallel if "-npl" in asked else CLIENTS
    return chosen(serve_cases(clients, **given), how.case or ["*"])


def check_output(written: OutputOptions) -> None:
    """UsageError for formats and pictures that these rows do not have."""
    for flag, name in (("-o", written.output), ("-oe", written.output_err)):
        if name is not None and name not in FORMATS:
            raise UsageError(f"{flag}: wanted {' or '.join(FORMATS)} of --suite serve; got {name!r}")
    if written.plot is not None:
        raise UsageError("--plot: wanted another suite than serve, whose rows are no curves")


def run_serve(
    cases: Sequence[ServeCase], threads: Sequence[int], models: Models, job: ServeJob, written: OutputOptions,
    bars: Bars,
) -> None:  # fmt: skip
    """Measure the cases and print their rows."""
    ours, theirs = tee(run_loads(cases, threads, models, job, bars.report))
    other = FORMATS[written.output_err](theirs) if written.output_err else iter(())
    write_both(FORMATS[written.output](ours), other)
