"""Builds graphs: makes nodes, infers their types, names them by scope and records the user's source line.

Knows ops as values; the methods for single ops are functions in `methods`, collected in `language.py`.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Self

from graphml.errors import GraphError, ShapeError
from graphml.ir.argument_kinds import AnyDType, Numbers
from graphml.ir.arguments import method
from graphml.ir.dtype import as_dtype
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Attributes, Op, Type
from graphml.ir.ops.constant import attributes_of, constant
from graphml.ir.ops.leaf import input_leaf, state_leaf, weight_leaf
from graphml.ir.own_op import OwnOp
from graphml.ir.shape import Shape
from graphml.ir.source import caller
from graphml.ir.state_order import StateOrder, check_state_operand
from graphml.ir.symbol_rules import check_leaf, check_lengths, check_symbols

_NONE: Attributes = MappingProxyType({})
_type_of = operator.attrgetter("type")


def complete(op: Op, attributes: Mapping[str, Attribute]) -> Attributes:
    """The attributes of an op, defaults filled in; unknown or missing ones are a `GraphError`."""
    if not op.attributes and not attributes:
        return _NONE
    full: dict[str, Any] = {**op.attributes, **attributes}
    if len(full) > len(op.attributes):
        unknown = next(name for name in full if name not in op.attributes)
        raise GraphError(f"[{op.name}] has no attribute {unknown!r}; it has {sorted(op.attributes)}")
    for name, value in full.items():
        if value is None:
            raise GraphError(f"[{op.name}] wanted attribute {name!r}; got {sorted(attributes)}")
    if isinstance(op, OwnOp):
        try:
            full = dict(op.fitted(full))
        except GraphError as error:
            raise GraphError(f"[{op.name}] {error}") from None
    return MappingProxyType(full)


def check_operands(op: Op, nodes: Sequence[Node], result_type: Type) -> None:
    """Refuse operands and a result that fit each other, and still have no one meaning: symbols and states."""
    check_symbols(op, result_type)
    check_lengths(op, nodes)
    if op.decompose is None:  # of a fused op the plain ops tell
        for i, node in enumerate(nodes):
            check_state_operand(op, i, node)


def infer_type(op: Op, inputs: Sequence[Type], attributes: Attributes) -> Type:
    """The type of an op's output; an error (`ShapeError`) names the op, what was wanted and what came."""
    try:
        return op.infer(inputs, attributes)
    except GraphError as error:
        prefixed = type(error)(f"[{op.name}] {error}")
        prefixed.located = error.located
        raise prefixed from None
    except (ValueError, IndexError):  # a shape rule unpacks its operands and their dimensions
        raise ShapeError(
            f"[{op.name}] takes operands of another number or rank; got {list(inputs)}"
        ) from None


def other_order(op: Op, nodes: Sequence[Node], attributes: Attributes) -> str:
    """For an error: the order in which two or three operands would fit."""
    if len(nodes) not in (2, 3):
        return ""
    for order in itertools.permutations(nodes):
        try:
            infer_type(op, [node.type for node in order], attributes)
        except GraphError:
            continue
        return f"; they fit in the order {', '.join('%' + node.name for node in order)}"
    return ""


def _misfit(op: Op, nodes: Sequence[Node], attributes: Attributes) -> GraphError:
    """The error for operands that an op refuses: also how they would fit, and the tensors behind them."""
    try:
        infer_type(op, [node.type for node in nodes], attributes)
    except GraphError as error:
        weights = told_weights(nodes)
        order = other_order(op, nodes, attributes)
        refusal = type(error)(f"{error}{order}{f'; from {weights}' if weights else ''}")
        refusal.located = error.located
        return refusal
    raise AssertionError(f"{op.name} refuses operands and then takes them")


def nearest_weights(node: Node) -> list[Node]:
    """The weights nearest to a value: those that it is computed from in the fewest steps."""
    front, seen = [node], {node}
    while front:
        weights = [node for node in front if node.op is weight_leaf]
        if weights:
            return weights
        front = [source for node in front for source in node.inputs if source not in seen]
        seen.update(front)
    return []


def told_weights(nodes: Sequence[Node]) -> str:
    """For an error: the tensors of the model file whose shapes may be to blame."""
    weights = {weight.name: weight for node in nodes for weight in nearest_weights(node)}
    return ", ".join(f"{weight.name} {weight.type}" for weight in weights.values())


class BaseBuilder:
    """Collects nodes in the order in which they are made.

    nodes: the nodes so far; a dictionary, because arguments are looked up in it.
    """

    def __init__(self) -> None:
        self.nodes: dict[Node, None] = {}
        self._names: dict[str, int] = {}
        self._prefix = ""
        self._leaves: dict[str, Node] = {}
        self._states = StateOrder()

    @property
    def scope_name(self) -> str:
        """The prefix of the names of new nodes: the open scopes, joined by dots."""
        return self._prefix.removesuffix(".")

    @method
    @contextmanager
    def scope(self, name: str) -> Iterator[Self]:
        """Put `name.` before the names of all nodes made within a `with` statement; scopes add up.

        >>> with g.scope("vision"):
        ...     print(g.silu(x, name="gate").name)
        vision.gate
        """
        before = self._prefix
        self._prefix = f"{before}{name}."
        try:
            yield self
        finally:
            self._prefix = before

    @method
    def call(self, op: Op, *inputs: Node, name: str | None = None, **attributes: Attribute) -> Node:
        """A node of any op, with or without a method of its own.

        Operands and attributes are those that the op declares in `graphml/ir/ops`. Operands that do not fit
        raise a `ShapeError` with their types, the tensors of the file behind them and the caller's line.

        >>> from graphml.ir.ops.elementwise import scale
        >>> g.call(scale, x, name="halved", factor=0.5)
        %halved: f32[T<=8, 64] = scale(%x)
        """
        return self.record(op, *inputs, name=name, **attributes)

    def record(self, op: Op, *inputs: Node, name: str | None = None, **attributes: Attribute) -> Node:
        """Like `call`, for methods, which have checked their arguments."""
        full = complete(op, attributes)
        try:
            result_type = op.infer(list(map(_type_of, inputs)), full)
        except (GraphError, ValueError, IndexError):
            raise _misfit(op, inputs, full) from None
        check_operands(op, inputs, result_type)
        node = Node(op, inputs, result_type, self._unique(self._prefix + (name or op.name)), full, caller())
        self._states.add(node)
        self.nodes[node] = None
        return node

    @method
    def input(self, name: str, dtype: AnyDType, shape: Shape) -> Node:
        """A value passed in at every step. A second call with its name returns the same node.

        >>> g.input("mask", F32, (g.n_tokens, 4))
        %mask: f32[T<=8, 4] = input()
        """
        return self.leaf(input_leaf, name, Type(as_dtype(dtype), shape))

    @method
    def weight(self, name: str, dtype: AnyDType, shape: Shape) -> Node:
        """A tensor of the model file by its name there. Architectures use `weights` instead.

        >>> g.weight("blk.0.ffn_up.weight", dtype("q4_0"), (96, 64))
        %blk.0.ffn_up.weight: q4_0[96, 64] = weight()
        """
        return self.leaf(weight_leaf, name, Type(as_dtype(dtype), shape))

    @method
    def state(self, name: str, dtype: AnyDType, shape: Shape) -> Node:
        """A value kept between steps; zeros at first. Ops that write change it.

        >>> g.state("memory", F32, (g.n_sequences, 64))
        %memory: f32[S<=1, 64] = state()
        """
        return self.leaf(state_leaf, name, Type(as_dtype(dtype), shape))

    @method
    def constant(self, values: Numbers, name: str | None = None) -> Node:
        """Numbers that are written in the graph: an array, nested lists, or one number, of shape [1].

        Whole numbers are i32, others and truth values f32; 1 to 65,536 elements. It is uploaded once, like a
        weight, and belongs to the graph's text.

        >>> g.mul(x, g.constant([0.5, 2.0] * 32))
        %mul: f32[T<=8, 64] = mul(%x, %constant)
        """
        return self.record(constant, name=name, **attributes_of(values))

    @method
    def finish(self, *nodes: Node, **outputs: Node) -> Graph:
        """The graph of the outputs and of every change of a state, without nodes that neither needs.

        Outputs have the names of keywords; those in order, the names of their nodes.

        >>> [node.name for node in g.finish(result=g.silu(x)).nodes]
        ['x', 'silu']
        """
        named = {node.name: node for node in nodes}
        both = [name for name in named if name in outputs]
        if both:
            raise GraphError(f"[g.finish] two outputs are called {both[0]!r}: wanted a keyword for each")
        return make_graph(self.nodes, {**named, **outputs})

    def leaf(self, op: Op, name: str, kind: Type) -> Node:
        """The leaf called `name`: the same node for every call, which must ask for the same type."""
        known = self._leaves.get(name)
        if known is None:
            if name in self._names:  # a leaf is found by its name alone, so it cannot be renamed
                raise GraphError(f"{op.name} {name!r} is asked for after a node was called so")
            check_leaf(op, name, kind)
            known = Node(op, (), kind, self._unique(name), source=caller())
            self._leaves[name] = known
            self.nodes[known] = None
        if known.op is not op or (known.type is not kind and known.type != kind):
            raise GraphError(f"{name!r} is {known.op.name} {known.type} already; got {op.name} {kind}")
        return known

    def _unique(self, name: str) -> str:
        names = self._names
        while name in names:
            count = names[name]
            names[name] = count + 1
            name = f"{name}_{count}"
        names[name] = 1
        return name
