"""Writes into parts of a new tensor, which torch.export traces as copies and scattered slices, as joins.

Knows a description; nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from graphml.authoring.importing.description import TracedModule, TracedNode
from graphml.authoring.importing.evaluation import op_name

NEW = ("new_empty", "empty", "empty_like", "new_zeros", "zeros", "zeros_like")


@dataclass(frozen=True)
class _Write:
    """A part of a dimension, from start to stop, and the node that is written there."""

    start: int
    stop: int
    source: str


def joined_writes(description: TracedModule) -> TracedModule:
    """The description with each `copy` as its source, and tensors that are written as a whole as joins."""
    nodes: dict[str, TracedNode] = {}
    writes: dict[str, tuple[int, list[_Write]]] = {}  # of a scattered slice: the dimension, all its parts
    for name, node in description.nodes.items():
        known = node
        if op_name(node) == "copy":
            known = _copied(nodes, node)
        elif op_name(node) == "slice_scatter" and (parts := _written(nodes, writes, node)) is not None:
            writes[name] = parts
            known = _join(node, *parts) or node
        nodes[name] = known
    return replace(description, nodes=nodes)


def _copied(nodes: Mapping[str, TracedNode], node: TracedNode) -> TracedNode:
    """The source of a copy, repeated where it is smaller."""
    source = node.args["src"]
    shape = nodes[source["node"]].shape if source["node"] in nodes else None
    if shape is None:
        return node
    if shape == node.shape:
        return replace(node, op="aten.alias.default", args={"self": source})
    size = [-1 if isinstance(size, str) else size for size in node.shape or ()]
    return replace(node, op="aten.expand.default", args={"self": source, "size": size})


def _written(
    nodes: Mapping[str, TracedNode], writes: Mapping[str, tuple[int, list[_Write]]], node: TracedNode
) -> tuple[int, list[_Write]] | None:
    """The parts that are written after this one; None unless a new tensor has no others."""
    base, source = node.args["self"]["node"], node.args["src"]["node"]
    dim, shape = node.args.get("dim", 0), node.shape or ()
    size = shape[dim]
    if isinstance(size, str) or node.args.get("step", 1) != 1:
        return None
    start, stop, _ = slice(node.args.get("start"), node.args.get("end")).indices(size)
    this = _Write(start, stop, source)
    if base in writes:
        of, parts = writes[base]
        apart = all(part.stop <= start or stop <= part.start for part in parts)
        return (dim, [*parts, this]) if of == dim and apart else None
    is_new = base in nodes and op_name(nodes[base]) in NEW
    return (dim, [this]) if is_new else None


def _join(node: TracedNode, dim: int, parts: list[_Write]) -> TracedNode | None:
    """The parts one after the other, if nothing is left out."""
    ordered = sorted(parts, key=lambda part: part.start)
    stops = [0, *(part.stop for part in ordered)]
    if [part.start for part in ordered] != stops[:-1] or stops[-1] != (node.shape or ())[dim]:
        return None
    tensors: list[Any] = [{"node": part.source} for part in ordered]
    return replace(node, op="aten.cat.default", args={"tensors": tensors, "dim": dim})
