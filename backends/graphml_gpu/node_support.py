"""Which nodes have kernels here, and how many bytes their values take on a device."""

from __future__ import annotations

from math import prod

from graphml.ir.node import Node
from graphml.ir.op import Type, integer
from graphml.ir.ops.layout import part
from graphml.ir.shape import bounds
from graphml_gpu.lowering import table

ALIGNMENT = 512
"""Values begin at multiples of it, so that a binding can begin where a value does, on any common device."""


def computes(node: Node) -> bool:
    """Whether a node is worked out at all: leaves and views are not."""
    return node.op.family != "leaf" and not node.op.view


def refuses(node: Node) -> str | None:
    """Why a node has no kernel here; such a node runs in NumPy between the dispatches."""
    if not computes(node):
        return None
    lowering = table().get(node.op.name)
    return lowering.refuses(node) if lowering else f"no kernel for {node.op.name}"


def aligned(n_bytes: int) -> int:
    """The next multiple of the alignment; at least one."""
    return max(-(-n_bytes // ALIGNMENT), 1) * ALIGNMENT


def value_bytes(kind: Type) -> int:
    """Bytes of a value at its bounds, aligned; several results follow each other, each aligned."""
    if kind.parts:
        return sum(map(value_bytes, kind.parts))
    *lead, last = bounds(kind.shape) or (1,)
    return aligned(prod(lead) * kind.dtype.bytes_for(last))


def part_offset(kind: Type, index: int) -> int:
    """Where a result begins in the value of a node that has several."""
    return sum(map(value_bytes, kind.parts[:index]))


def viewed(node: Node) -> Node:
    """The node whose storage a value shows: views are seen through, a written state is the state."""
    while node.op.view or node.op.is_write:
        node = node.inputs[node.op.writes or 0]
    return node


def result_of(node: Node) -> int | None:
    """Which of several results of a node a value is, seen through views; None for others."""
    while node.op.view:
        if node.op is part:
            return integer(node.attributes, "index")
        node = node.inputs[0]
    return None
