"""`graphml profile`: where the time of a prompt and of the tokens after it goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from graphml.cli import machine, options
from graphml.cli.checks import check_target
from graphml.cli.console import Bars, write_file, write_json
from graphml.cli.opening import find, load
from graphml.cli.typer_options import grouped
from graphml.errors import UsageError
from graphml.inspect import profile_table
from graphml.inspect.profile import N_GEN, with_times
from graphml.inspect.profile import profile as measure
from graphml.inspect.trace import trace as trace_events

DEFAULT_TABLES = {"md": "phase,op,layer", "csv": "op", "json": ",".join(profile_table.BY)}

PromptTokens = Annotated[
    int, typer.Option("--prompt-tokens", "-p", min=0, help="Tokens of the prompt; 0: none.")
]
NewTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", "-n", min=0, show_default=f"{N_GEN}, or 0 of a model that does not continue a text",
        help="Tokens after it; 0: none.",
    ),
]  # fmt: skip


@grouped
def profile(
    opening: options.Running,
    model: options.Model = None,
    prompt_tokens: PromptTokens = 512,
    max_tokens: NewTokens = None,
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, help="How often the prompt is read.")] = 3,
    by: Annotated[
        str | None,
        typer.Option(
            help="Tables by phase, op, layer or node, several with commas; csv has one.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="md, csv (one table) or json.")] = "md",
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev too.", show_default=False),
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Write the graph with these times too, for `graphml graph` and `explain`.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show where the time of a prompt and of the tokens after it goes: by phase, op, layer or node."""
    chosen = _tables(by, format)
    check_target("--trace", trace)
    check_target("--graph", graph)
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        found = measure(opened, prompt_tokens, max_tokens, rounds)
        if graph is not None:
            write_file(graph, _dumped(with_times(opened, found)), "--graph")
    bandwidth = machine.read_bandwidth(found.threads)
    if trace is not None:
        write_file(trace, _dumped(trace_events(found)), "--trace")
    if format == "json":
        write_json(profile_table.as_json(found, bandwidth, chosen))
    elif format == "csv":
        print(profile_table.comma_separated(found, bandwidth, chosen[0]), end="")
    else:
        print(profile_table.markdown(found, bandwidth, chosen), end="")


def _dumped(value: Mapping[str, Any]) -> str:
    return json.dumps(value, allow_nan=False) + "\n"


def _tables(by: str | None, format: str) -> list[str]:
    """The tables that are wanted in a format."""
    if format not in DEFAULT_TABLES:
        raise UsageError(f"--format: wanted one of {', '.join(DEFAULT_TABLES)}; got {format!r}")
    chosen = [one.strip() for one in (DEFAULT_TABLES[format] if by is None else by).split(",")]
    for one in chosen:
        if one not in profile_table.BY:
            raise UsageError(f"--by: wanted {', '.join(profile_table.BY)}; got {one!r}")
    if format == "csv" and len(chosen) > 1:
        raise UsageError(f"--by: wanted one table for csv; got {by!r}")
    return chosen
