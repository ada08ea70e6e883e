"""`graphml placement`: where the nodes of a model go and why, and what crosses from backend to backend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from graphml.cli.options import options
from graphml.cli.options.opening import header
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, columns, write_json
from graphml.inspect.dumps.placed_nodes import describe_placement
from graphml.system.progress_labels import size

_SHOWN = 12  # parts and copies, unless all are asked for


@grouped
def placement(
    opening: options.Header,
    model: options.Model = None,
    every: Annotated[bool, typer.Option("--nodes", help="Print every node, split and copy.")] = False,
    json: options.Json = False,
) -> None:
    """Show the backend of each node and why, the splits of the graph, and the bytes copied between them.

    Reads the header only.
    """
    with Bars() as bars, header(model, opening, opening.n_batch, bars) as (path, executor):
        description = describe_placement(executor)
    if json:
        kv = executor.cache_dtype
        write_json({"model": str(path), "kv": kv, "strict": opening.strict, **description})
        return
    rules = executor.options.place  # those of --gpu-layers, too
    print(f"{path} on {executor.backend.name}{f', {rules}' if rules else ''}")
    _devices(description["devices"], opening.n_batch)
    _reasons(description["nodes"])
    _parts(description["parts"], every)
    _copies(description, every)
    if every:
        _table(
            "nodes",
            [[n["name"], n["op"], n["backend"], str(n["part"]), n["reason"]] for n in description["nodes"]],
        )


def _devices(devices: Iterable[dict[str, Any]], batch: int) -> None:
    heads = ["", "nodes", "weights", "state/token", "state/sequence", "arena", "at least", "waste"]
    rows = [[*heads, f"arena {batch}", "at least"]]
    rows += [
        [
            device["backend"],
            str(device["nodes"]),
            size(device["weight_bytes"]),
            size(device["state_bytes_per_token"]),
            size(device["state_bytes_per_sequence"]),
            *(size(device["arena_decode"][key]) for key in ("peak", "lower_bound", "waste")),
            *(size(device["arena_prefill"][key]) for key in ("peak", "lower_bound")),
        ]
        for device in devices
    ]
    _table("devices", rows)


def _reasons(nodes: Sequence[dict[str, Any]]) -> None:
    """Reasons that are equal but for the layer once, with the number of nodes that are computed."""
    groups: dict[tuple[str, str], list[str]] = {}
    computed = [node for node in nodes if node["computed"]]
    for node in computed:
        alike = re.sub(r"\b(layers|cache|blk)\.\d+\.", r"\1.*.", node["reason"])
        reason = re.sub(r"placed with (?!its )\S+", "placed with its value or state", alike)
        groups.setdefault((node["backend"], reason), []).append(node["name"])
    others = len(nodes) - len(computed)
    _table(
        f"why: {len(computed)} nodes; {others} states, views and constants are where they are read",
        [
            [backend, str(len(names)), reason, names[0] + (", ..." if len(names) > 1 else "")]
            for (backend, reason), names in groups.items()
        ],
    )


def _parts(parts: Sequence[dict[str, Any]], every: bool) -> None:
    shown = parts if every else parts[:_SHOWN]
    rows = [[str(p["index"]), p["backend"], f"{p['nodes']} nodes", p["first"], p["last"]] for p in shown]
    _table(f"parts: {len(parts)}", rows, len(parts) - len(shown))


def _copies(description: dict[str, Any], every: bool) -> None:
    copies, crossing = description["copies"], description["crossing"]
    shown = copies if every else copies[:_SHOWN]
    title = (
        f"copies: {len(copies)}; {size(crossing['token_bytes'])} cross between backends per token, "
        f"{size(crossing['batch_bytes'])} in a step of {crossing['n_batch']}"
    )
    rows = [
        [c["name"], f"part {c['source']} to {c['target']}", " to ".join(c["between"]), size(c["token_bytes"])]
        for c in shown
    ]
    _table(title, rows, len(copies) - len(shown))


def _table(title: str, rows: Sequence[Sequence[str]], left_out: int = 0) -> None:
    print(title)
    for line in columns(rows):
        print(f"  {line}")
    if left_out:
        print(f"  and {left_out} more (--nodes shows all)")
