"""Which nodes have kernels here, how values are laid out, and which of them every thread makes for itself."""

from __future__ import annotations

from math import prod

from graphml.ir.node import Node
from graphml.ir.op import integer
from graphml.ir.ops.layout import part
from graphml.ir.shape import bounds
from graphml_cpu.lowering import table
from graphml_cpu.sizes import value_bytes

_REPLICATE_LIMIT = 1 << 16  # bytes: a longer row is shared among the threads, a barrier is cheaper then


def refuses(node: Node) -> str | None:
    """Why a node has no kernel here; such a node runs in NumPy between the kernels."""
    if node.op.family == "leaf" or node.op.view:
        return None
    lowering = table().get(node.op.name)
    return lowering.refuses(node) if lowering else f"no kernel for {node.op.name}"


def one_copy_bytes(node: Node) -> int:
    """Bytes of a value at its bounds, a multiple of the cache line; several results follow each other."""
    return value_bytes(node.type)


def result_of(node: Node) -> tuple[Node, int] | None:
    """The node of which a value is one of several results, seen through views, and which; None for others."""
    while node.op.view:
        if node.op is part:
            return node.inputs[0], integer(node.attributes, "index")
        node = node.inputs[0]
    return None


def viewed(node: Node) -> Node:
    """The node whose storage a view shows; the node itself where it is no view."""
    while node.op.view:
        node = node.inputs[0]
    return node


def replicated(node: Node) -> bool:
    """Whether every thread computes this value for itself: cheap single rows, to save a barrier."""
    node = viewed(node)
    lowering = table().get(node.op.name)
    if lowering is None or not lowering.replicable or lowering.shared(node) or refuses(node) is not None:
        return False
    first = (node.type.parts or (node.type,))[0].shape[:1]
    return prod(bounds(first)) == 1 and one_copy_bytes(node) <= _REPLICATE_LIMIT
