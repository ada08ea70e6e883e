"""`graphml profile`: where the time of a prompt and of the tokens after it goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from graphml.backend import Device, NamedDevice
from graphml.cli.options import options
from graphml.cli.options.checks import check_target
from graphml.cli.options.opening import find, load
from graphml.cli.options.typer_options import beginning_with, grouped
from graphml.cli.terminal import machine
from graphml.cli.terminal.console import Bars, write_file, write_json
from graphml.compiler.multi_device import PartsDevice
from graphml.errors import UsageError
from graphml.inspect.model_inspection import ModelProfile
from graphml.inspect.profile import profile_table, step_plot, step_table
from graphml.inspect.profile.mixed_run import MixedRun, mixed_run
from graphml.inspect.profile.profile import N_GEN, N_PROMPT, with_times
from graphml.inspect.profile.profile import profile as measure
from graphml.inspect.profile.trace import step_trace
from graphml.inspect.profile.trace import trace as trace_events
from graphml.system.notebook_html import html_page

ROUNDS = 3
DEFAULT_TABLES = {"md": "phase,op,layer", "csv": "op", "json": ",".join(profile_table.BY), "html": "op"}

PromptTokens = Annotated[
    int | None,
    typer.Option(
        "--prompt-tokens", "-p", min=0, show_default=f"{N_PROMPT}, or what the context has room for",
        help="Number of prompt tokens; 0: none.",
    ),
]  # fmt: skip
NewTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", "-n", min=0, show_default=f"{N_GEN}, or 0 of a model that does not continue a text",
        help="Number of generated tokens; 0: none.",
    ),
]  # fmt: skip

Sequences = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", show_default=False,
        help="Profile the steps of an engine: N sequences generate, two requests with the prompt arrive.",
    ),
]  # fmt: skip
Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.png", show_default=False, help="Plot the steps of --sequences; needs the extra plots."
    ),
]


@grouped
def profile(
    opening: options.Running,
    model: options.Model = None,
    n_prompt: PromptTokens = None,
    n_gen: NewTokens = None,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", "-r", min=1, show_default=str(ROUNDS), help="Repetitions of the prompt."),
    ] = None,
    sequences: Sequences = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Group by phase, op, layer or node, several with commas; csv has one.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            show_default="md, or by the ending of --output",
            help="Output format: md, csv (one table), json or html.",
            autocompletion=beginning_with(DEFAULT_TABLES),
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="Write the tables as a page.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a trace for ui.perfetto.dev.", show_default=False),
    ] = None,
    plot: Plot = None,
    graph: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Also write the graph with these times, for `graphml graph` and `explain`.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Profile a prompt (prefill) and the tokens after it (decode): time by phase, op, layer or node."""
    check_target("--trace", trace)
    format = _form(format, output)
    check_target("--graph", graph, ".json")
    check_target("--plot", plot)
    if sequences is not None:
        _check_steps({"--by": by, "--graph": graph, "--rounds": rounds}, format, plot)
        with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
            _write_steps(mixed_run(opened, sequences, n_prompt, n_gen), format, trace, plot)
        return
    if plot is not None:
        raise UsageError("--plot: wanted --sequences too, whose steps are drawn")
    chosen = _tables(by, format)
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        measured = measure(opened, n_prompt, n_gen, rounds or ROUNDS)
        if graph is not None:
            write_file(graph, _dumped(with_times(opened, measured)), "--graph")
        bandwidth = _bandwidth(opened.executor.device, measured.threads)
    if trace is not None:
        write_file(trace, _dumped(trace_events(measured)), "--trace")
    if format == "html":
        page = html_page(f"profile of {measured.model}", ModelProfile(**vars(measured))._repr_html_())
        if output is None:
            print(page, end="")
        else:
            write_file(output, page, "--output")
    elif format == "json":
        write_json(profile_table.as_json(measured, bandwidth, chosen))
    elif format == "csv":
        print(profile_table.comma_separated(measured, bandwidth, chosen[0]), end="")
    else:
        print(profile_table.markdown(measured, bandwidth, chosen), end="")


def _form(format: str | None, output: Path | None) -> str:
    """The format that is wanted; UsageError for a file that is no page, whose format stdout has."""
    if output is not None:
        ending = output.suffix.lower().removeprefix(".")
        if ending != "html":
            form = ending if ending in DEFAULT_TABLES else "json"
            raise UsageError(
                f"--output: wanted FILE.html; got {str(output)!r:.80}; others are on stdout: "
                f"--format {form} > {output}"
            )
        if format not in (None, "html"):
            raise UsageError(f"--format {format}, --output {output}: wanted html, or no file")
        check_target("--output", output)
        return "html"
    return "md" if format is None else format


def _bandwidth(device: Device, threads: int) -> float:
    """Bytes per second of the memory that programs read; 0 where they read that of several devices."""
    if isinstance(device, PartsDevice):
        return 0.0
    return device.bandwidth() if isinstance(device, NamedDevice) else machine.read_bandwidth(threads)


def _check_steps(flags: Mapping[str, object], format: str, plot: Path | None) -> None:
    """Refuse what steps of an engine do not have."""
    wrong = [flag for flag, value in flags.items() if value is not None]
    if wrong:
        raise UsageError(
            f"--sequences: wanted no {', '.join(wrong)}: steps of an engine are profiled as a whole"
        )
    if format not in ("md", "json"):
        raise UsageError(f"--format: wanted md or json of --sequences; got {format!r}")
    if plot is not None:
        step_plot.ready(plot)


def _write_steps(run: MixedRun, format: str, trace: Path | None, plot: Path | None) -> None:
    """What was recorded, to stdout and to the files that were named."""
    if trace is not None:
        write_file(trace, _dumped(step_trace(run.steps, run.model, run.backend)), "--trace")
    if plot is not None:
        step_plot.draw(plot, run)
    if format == "json":
        write_json(step_table.as_json(run))
    else:
        print(step_table.markdown(run), end="")


def _dumped(value: Mapping[str, Any]) -> str:
    return json.dumps(value, allow_nan=False) + "\n"


def _tables(by: str | None, format: str) -> list[str]:
    """The tables that are wanted in a format."""
    if format not in DEFAULT_TABLES:
        raise UsageError(f"--format: wanted one of {', '.join(DEFAULT_TABLES)}; got {format!r}")
    chosen = [name.strip() for name in (DEFAULT_TABLES[format] if by is None else by).split(",")]
    for name in chosen:
        if name not in profile_table.BY:
            raise UsageError(f"--by: wanted {', '.join(profile_table.BY)}; got {name!r}")
    if format == "html" and chosen != ["op"]:
        raise UsageError(f"--by: wanted op, which a page has; got {by!r}")
    if format == "csv" and len(chosen) > 1:
        raise UsageError(f"--by: wanted one table for csv; got {by!r}")
    return chosen
