"""A node of the graph: an op applied to nodes, with a type, a name and its origin. Immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from graphml.ir.dtype import DType
from graphml.ir.op import Attribute, Op, Type
from graphml.ir.operators import without_operators
from graphml.ir.shape import Shape
from graphml.ir.source import Source

_NO_ATTRIBUTES: Mapping[str, Attribute] = MappingProxyType({})


@without_operators
@dataclass(frozen=True, eq=False, init=False)
class Node:
    """One value of a graph and its op. Two nodes are equal when they are the same object.

    origin: names of the nodes that a pass made this one from; empty for a node as built.
    """

    op: Op
    inputs: tuple[Node, ...]
    type: Type
    name: str
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: _NO_ATTRIBUTES)
    source: Source | None = None
    origin: tuple[str, ...] = ()

    def __init__(
        self,
        op: Op,
        inputs: tuple[Node, ...],
        type: Type,
        name: str,
        attributes: Mapping[str, Attribute] = _NO_ATTRIBUTES,
        source: Source | None = None,
        origin: tuple[str, ...] = (),
    ) -> None:
        held = self.__dict__  # as a frozen dataclass sets one field after the other, in twice the time
        held["op"], held["inputs"], held["type"], held["name"] = op, inputs, type, name
        held["attributes"], held["source"], held["origin"] = attributes, source, origin

    def on(self, inputs: tuple[Node, ...]) -> Node:
        """The same of other nodes; itself if they are the same."""
        if inputs == self.inputs:
            return self
        return Node(self.op, inputs, self.type, self.name, self.attributes, self.source, self.origin)

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """The shape in NumPy order."""
        return self.type.shape

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type} = {self.op.name}({', '.join('%' + i.name for i in self.inputs)})"
