"""What backends ask of values: their storage, results of nodes, constants, sizes. Knows no device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from graphml.ir.interpreter import depends_on
from graphml.ir.node import Node
from graphml.ir.op import Array, Type, integer
from graphml.ir.ops.layout import part
from graphml.ir.shape import bounds


@dataclass(frozen=True)
class NodeResult:
    """One result of a node that has several."""

    node: Node
    index: int


@dataclass(frozen=True)
class HostConstant:
    """An array worked out on the host from the model's weights (name -> array) when the program is made."""

    make: Callable[[Mapping[str, Array]], Array]


def number(node: Node, name: str) -> float:
    """A numeric attribute."""
    value = node.attributes[name]
    assert isinstance(value, int | float)
    return float(value)


def width(value: Node | Type) -> int:
    """Elements of one row, at the bound."""
    return bounds(value.shape)[-1]


def viewed(node: Node) -> Node:
    """The node whose value a view shows; the node itself where it is no view."""
    while node.op.view:
        node = node.inputs[0]
    return node


def storage_of(node: Node) -> Node:
    """The node that owns the storage: views are seen through, a written state is the state."""
    while node.op.view or node.op.is_write:
        node = node.inputs[node.op.writes or 0]
    return node


def result_of(node: Node) -> tuple[Node, int] | None:
    """The node of which a value is one of several results, seen through views, and which; None for others."""
    while node.op.view:
        if node.op is part:
            return node.inputs[0], integer(node.attributes, "index")
        node = node.inputs[0]
    return None


def refuses_factors(node: Node) -> str | None:
    """Why a backend makes no rope table: its factors are no weights; None where it does."""
    if len(node.inputs) > 1 and depends_on(node.inputs[1]):
        return f"the factors {node.inputs[1].name} are computed in the graph"
    return None
