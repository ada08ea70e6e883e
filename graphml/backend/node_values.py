"""What lowerings of every backend say of values: results of nodes, constants, sizes. Knows no device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from graphml.ir.node import Node
from graphml.ir.op import Array, Type
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
