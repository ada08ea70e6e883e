"""`graphml bench`: tokens per second in llama-bench's words, beside other engines, and what bounds them.

`graphml bench --server URL` measures clients of running servers in turns; `graphml bench compare` compares
two results, row by row.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import tee
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from graphml import settings
from graphml.bench import compared_results as comparing
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
from graphml.bench.server_load import ServerLoad
from graphml.bench.server_rows import FORMATS as SERVER_FORMATS
from graphml.bench.server_rows import measure_servers
from graphml.cli.help_pages import HelpedGroup
from graphml.cli.options.checks import check_backends, check_file, check_places, key_of
from graphml.cli.options.opening import find
from graphml.cli.options.options import Json, ModelSource
from graphml.cli.options.typer_options import flags_given, grouped
from graphml.cli.terminal import machine
from graphml.cli.terminal.console import Bars, own_output, write_both, write_json
from graphml.cluster.cluster_options import importing_ray
from graphml.errors import UsageError
from graphml.loading import discovery, fetch


class BenchGroup(HelpedGroup):
    """The command, whose first word may be the model, as of all other commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer; a first word that names a model, and no command, is --model's."""
        word = args[0] if args else "-"
        if not word.startswith("-") and word not in self.list_commands(ctx) and fetch.names_model(word):
            args = ["--model", *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    cls=BenchGroup,
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
    check_server(servers, asked, flags_given(context, MeasuredServers), written)
    if servers.server:
        run_servers(servers, lengths, asked, how, written)
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
        counts = list(setting.threads) or [default_threads() if how.ray is None else 0]
        paths = models_of(which, bars) or [default_model(which, bars)]
        settings = setting.combined(paths, counts)
        shown = _shown(settings, "ratio" if len(job.engines) > 1 else "")
        job = replace(job, settings=settings)
        if how.ray is not None:
            _run_on_nodes(how.ray, job, shown, written, bars)
            return
        ours, theirs = tee(job.rows(bars.report))
        other = FORMATS[written.output_err](theirs, shown) if written.output_err else iter(())
        write_both(FORMATS[written.output](ours, shown), other)


def _run_on_nodes(address: str, job: Job, shown: Sequence[str], written: OutputOptions, bars: Bars) -> None:
    """Write a table for each node of a cluster, or in other forms the rows of all, each with its node."""
    with importing_ray():
        from graphml.cluster.node_benchmarks import rows_of_nodes

    def texts() -> Iterator[str]:
        of_nodes = rows_of_nodes(address, job, machine.cpu_name, bars.report)
        if written.output == "md":
            for node, rows in of_nodes:
                yield f"node {node}\n\n"
                yield from FORMATS["md"](rows, shown)
                yield "\n"
        else:
            yield from FORMATS[written.output]((row for _, rows in of_nodes for row in rows), shown)

    with own_output() as out:
        for text in texts():
            out.write(text)
            out.flush()


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


HEEDED = ("-p", "-n", "-r", "--no-warmup")
"""Options of a model's tests that say something of a server's load, too."""
N_PROMPT, N_GEN, ROUNDS = 256, 128, 3


def check_server(
    servers: MeasuredServers, asked: Sequence[str], of_server: Sequence[str], written: OutputOptions
) -> None:
    """UsageError for options that servers do not heed, those of servers without one, and wrong addresses."""
    if not servers.server:
        if of_server:
            raise UsageError(f"{of_server[0]}: wanted --server too, whose clients it is about")
        return
    wrong = [flag for flag in asked if flag not in HEEDED]
    if wrong:
        raise UsageError(f"--server: wanted no {', '.join(wrong)}: its model and settings are the server's")
    for address in servers.server:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError(f"--server: wanted an address as http://127.0.0.1:8080; got {address!r}")
    for flag, name in (("-o", written.output), ("-oe", written.output_err)):
        if name is not None and name not in SERVER_FORMATS:
            raise UsageError(f"{flag}: wanted {' or '.join(SERVER_FORMATS)} of --server; got {name!r}")


def run_servers(
    servers: MeasuredServers,
    lengths: LengthOptions,
    asked: Sequence[str],
    how: RunOptions,
    written: OutputOptions,
) -> None:
    """Send the loads and print a row for each and each server."""
    n_prompt = _one("-p", lengths.n_prompt, asked, N_PROMPT, least=1)
    n_gen = _one("-n", lengths.n_gen, asked, N_GEN, least=2)
    key = key_of(servers.api_key or "")
    loads = [
        ServerLoad(
            count,
            servers.requests,
            n_prompt,
            n_gen,
            servers.shared,
            api_key=key,
            n_long=servers.long_prompt,
            n_idle=servers.idle,
        )
        for count in servers.clients
    ]
    rounds = how.repetitions if "-r" in asked else ROUNDS
    with Bars() as bars:
        rows = measure_servers(servers.server, loads, rounds, not how.no_warmup, bars.report)
        ours, theirs = tee(rows)
        other = SERVER_FORMATS[written.output_err](theirs) if written.output_err else iter(())
        write_both(SERVER_FORMATS[written.output](ours), other)


def _one(flag: str, values: Sequence[int], asked: Sequence[str], default: int, least: int) -> int:
    if flag not in asked:
        return default
    if len(values) != 1 or values[0] < least:
        raise UsageError(f"{flag}: wanted one number of {least} or more of --server; got {list(values)}")
    return values[0]


Tolerance = Annotated[
    str,
    typer.Option(
        "--fail-over", metavar="3%", help="Exit with 1 if a row is slower by more, beyond the spread."
    ),
]


def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="Results from before.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="Results from after.")],
    fail_over: Tolerance = "3%",
    by: Annotated[
        str, typer.Option("--by", help="t/s, or ratio: to the peer, which a slower machine leaves.")
    ] = "t/s",
    json: Json = False,
) -> None:
    """Compare two results of `graphml bench -o json` (or llama-bench's), row by row."""
    tolerance = _percent(fail_over)
    before, after = comparing.read(a), comparing.read(b)
    changes = comparing.compare(before, after, by)
    only_a, only_b = comparing.left_over(before, after)
    if json:
        write_json({
            "tolerance": tolerance,
            "rows": [
                {"model": change.model, "backend": change.backend, "threads": change.threads,
                 "test": change.test, "a": change.a, "b": change.b, "change": change.change,
                 "verdict": comparing.verdict(change, tolerance)}
                for change in changes
            ],
            "only_a": only_a,
            "only_b": only_b,
        })  # fmt: skip
    else:
        print(comparing.markdown(changes, tolerance), end="")
        for path, names in ((a, only_a), (b, only_b)):
            if names:
                print("\n".join([f"\nonly in {path}:", *(f"- {name}" for name in names)]))
    if any(change.slower(tolerance) for change in changes):
        raise typer.Exit(1)


def _percent(text: str) -> float:
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)\s*%?", text.strip())
    if match is None:
        raise UsageError(f"--fail-over: wanted a percentage such as 3%; got {text!r}")
    return float(match[1]) / 100


bench.command("compare")(compare)
