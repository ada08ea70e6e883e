"""Builds graphs: makes nodes, infers their types, names them by scope and remembers the user's source line.

The thin methods for the single ops stand in `language.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Self

from graphml.errors import GraphError, ShapeError
from graphml.ir.dtype import DType
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node, Source
from graphml.ir.op import Attribute, Attributes, Op, Type
from graphml.ir.ops.layout import part
from graphml.ir.ops.leaf import input_leaf, state_leaf, weight_leaf
from graphml.ir.shape import Shape

_OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep


def caller() -> Source | None:
    """The innermost line of code outside the package `graphml`: an architecture's, or the user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_FOLDER):
        frame = frame.f_back
    return Source(frame.f_code.co_filename, frame.f_lineno) if frame is not None else None


def complete(op: Op, given: Mapping[str, Attribute]) -> Mapping[str, Attribute]:
    """The attributes of an op, defaults filled in; unknown or missing ones are a `GraphError`."""
    unknown = sorted(set(given) - set(op.attributes))
    if unknown:
        raise GraphError(f"[{op.name}] has no attribute {unknown[0]!r}; it has {sorted(op.attributes)}")
    full = {name: given.get(name, default) for name, default in op.attributes.items()}
    known = {name: value for name, value in full.items() if value is not None}
    missing = [name for name in full if name not in known]
    if missing:
        raise GraphError(f"[{op.name}] wanted attribute {missing[0]!r}; got {sorted(given)}")
    return MappingProxyType(known)


def infer_type(op: Op, inputs: Sequence[Type], attributes: Attributes) -> Type:
    """The type of an op's output; an error (`ShapeError`) names the op, what was wanted and what came."""
    try:
        return op.infer(inputs, attributes)
    except GraphError as error:
        raise type(error)(f"[{op.name}] {error}") from None
    except (ValueError, IndexError):  # a shape rule unpacks its operands and looks at their dimensions
        raise ShapeError(
            f"[{op.name}] takes operands of another number or rank; got {list(inputs)}"
        ) from None


def nearest_weights(node: Node) -> list[Node]:
    """The weights that a value is made of in the fewest steps."""
    front, seen = [node], {node}
    while front:
        found = [one for one in front if one.op is weight_leaf]
        if found:
            return found
        front = [source for one in front for source in one.inputs if source not in seen]
        seen.update(front)
    return []


def told_weights(nodes: Sequence[Node]) -> str:
    """For an error: the tensors of the model file whose shapes may be to blame."""
    found = {weight.name: weight for node in nodes for weight in nearest_weights(node)}
    return ", ".join(f"{one.name} {one.type}" for one in found.values())


class BaseBuilder:
    """Collects nodes in the order in which they are made."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._names: dict[str, int] = {}
        self._scopes: list[str] = []
        self._leaves: dict[str, Node] = {}
        self._current_states: dict[str, Node] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[Self]:
        """Put `name.` before the names of all nodes made within."""
        self._scopes.append(name)
        try:
            yield self
        finally:
            self._scopes.pop()

    def make(self, op: Op, *inputs: Node, name: str | None = None, **attributes: Attribute) -> Node:
        """A new node. An error (`ShapeError`) names the op, the types and the caller's line."""
        source = caller()
        full = complete(op, attributes)
        try:
            made = infer_type(op, [node.type for node in inputs], full)
        except GraphError as error:
            where = f" (at {source})" if source else ""
            scope = f" in {'.'.join(self._scopes)}" if self._scopes else ""
            found = told_weights(inputs)
            raise type(error)(f"{error}{f'; from {found}' if found else ''}{scope}{where}") from None
        node = Node(op, inputs, made, self._unique(name or op.name), full, source)
        self._nodes.append(node)
        return node

    def results(self, node: Node) -> tuple[Node, ...]:
        """The node itself; where it has several results, the nodes through which they are read."""
        if not node.type.parts:
            return (node,)
        return tuple(self.make(part, node, index=i) for i in range(len(node.type.parts)))

    def input(self, name: str, dtype: DType, shape: Shape) -> Node:
        """A value given at every step; asked for again by its name, it is the same node."""
        return self._leaf(input_leaf, name, Type(dtype, shape))

    def weight(self, name: str, dtype: DType, shape: Shape) -> Node:
        """A tensor of the model file, by the file's name of it."""
        return self._leaf(weight_leaf, name, Type(dtype, shape))

    def state(self, name: str, dtype: DType, shape: Shape) -> Node:
        """A value kept between steps; zeros at first."""
        return self._leaf(state_leaf, name, Type(dtype, shape))

    def finish(self, **outputs: Node) -> Graph:
        """The graph of the named outputs and of every change of state."""
        return make_graph(self._nodes, outputs)

    def _leaf(self, op: Op, name: str, kind: Type) -> Node:
        known = self._leaves.get(name)
        if known is None:
            if name in self._names:  # a leaf is found by its name alone, so it cannot get another
                raise GraphError(f"{op.name} {name!r} is asked for after a node was called so")
            known = Node(op, (), kind, self._unique(name, scoped=False), source=caller())
            self._leaves[name] = known
            self._nodes.append(known)
        if known.op is not op or known.type != kind:
            raise GraphError(f"{name!r} is {known.op.name} {known.type} already; got {op.name} {kind}")
        return known

    def _unique(self, name: str, scoped: bool = True) -> str:
        full = ".".join([*self._scopes, name]) if scoped else name
        count = self._names.get(full, 0)
        self._names[full] = count + 1
        return full if count == 0 else self._unique(f"{full}_{count}", scoped=False)
