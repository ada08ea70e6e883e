"""Shared parts of drawings of a graph: nodes layer by layer, edges, colours, and texts of nodes.

Knows records and selections; no form of drawing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from graphml.inspect.dumps.document import Record
from graphml.inspect.dumps.selection import Selection
from graphml.passes.fusion import all_ops

COLOURS = {
    "leaf": "#eceff1",
    "linear": "#bbdefb",
    "attention": "#d1c4e9",
    "norm": "#c8e6c9",
    "elementwise": "#fff3c4",
    "fused": "#ffd5c2",
    "position": "#b2dfdb",
    "index": "#f8d7e3",
}
OTHER = "#ffffff"


def by_layer(selection: Selection) -> Iterator[tuple[int | None, list[Record]]]:
    """The nodes of each layer, in the order in which layers begin; those of no layer first."""
    first = {layer: i for i, layer in enumerate(dict.fromkeys(node["layer"] for node in selection.nodes))}
    ordered = sorted(selection.nodes, key=lambda node: (node["layer"] is not None, first[node["layer"]]))
    for layer, nodes in groupby(ordered, lambda node: node["layer"]):
        yield layer, list(nodes)


def edges(selection: Selection) -> Iterator[tuple[str, Record, int]]:
    """Source, reader and the operand's number."""
    for node in selection.nodes:
        for operand, source in enumerate(node["inputs"]):
            yield source, node, operand


def family_of(node: Record) -> str:
    """The family of a node's op, which determines its colour."""
    op = all_ops().get(node["op"])
    return str(node.get("family") or (op.family if op else "other"))


def shape_of(node: Record) -> str:
    """A node's shape as text."""
    return "[" + ", ".join(map(str, node["shape"])) + "]"


def what(node: Record) -> str:
    """Op, dtype and shape of a node."""
    return f"{node['op']} {node['dtype']}{shape_of(node)}"
