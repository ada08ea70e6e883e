"""A node of the graph: an op applied to nodes, with a type, a name and its origin. Immutable.

Python's operators on nodes are errors that name the builder's method: a node does not know its graph, and the
name and order of every op is explicit. Nodes remain truthy and equal to themselves alone, since `if weight:`
checks whether the file has a tensor, and passes keep nodes in sets. The methods are set while the program
runs, so that to type checkers and editors nodes have no operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from graphml.errors import GraphError
from graphml.ir.dtype import DType
from graphml.ir.op import Attribute, Op, Type
from graphml.ir.shape import Shape
from graphml.ir.source import Source, called_from
from graphml.ir.suggestion import ELSEWHERE

_KNOWN = "what is known while the graph is built are numbers of the configuration and dimensions in `shape`"
_NONE = "there is no op for it"
_NUMPY = "the methods of g say what is computed when the graph runs"
_BINARY = {
    "add": ("operator +", "use g.add(a, b), or for a number g.scale(a, 1.0, number)"),
    "sub": ("operator -", "use g.sub(a, b), or for a number g.scale(a, 1.0, -number)"),
    "mul": ("operator *", "use g.mul(a, b), or for a number g.scale(a, number)"),
    "truediv": ("operator /", "use g.div(a, b), or for a number g.scale(a, 1.0 / number)"),
    "matmul": ("operator @", "use g.mul_mat(weight, x), with a weight [out, in]"),
    "pow": ("operator **", "use g.sqr(a) or g.sqrt(a)"),
    "floordiv": ("operator //", _NONE),
    "mod": ("operator %", _NONE),
    "and": ("operator &", "use g.mul(a, b), or g.minimum(a, b), of masks that are 1 or 0"),
    "or": ("operator |", "use g.maximum(a, b) of masks that are 1 or 0"),
}
_REFUSED = {
    **{f"__{name}__": what for name, what in _BINARY.items()},
    **{f"__r{name}__": what for name, what in _BINARY.items()},
    "__neg__": ("operator -", "use g.neg(a)"),
    "__abs__": ("abs()", "use g.absolute(a)"),
    **dict.fromkeys(
        ("__lt__", "__le__", "__gt__", "__ge__"),
        ("order", f"use g.less(a, b), g.less_equal(a, b) or g.maximum(a, b); {_KNOWN}"),
    ),
    **dict.fromkeys(("__int__", "__float__", "__complex__", "__index__"), ("number", _KNOWN)),
    "__contains__": ("operator in", _KNOWN),
    "__getitem__": (
        "operator []",
        "use g.columns(a, start, stop) for a part of the last dimension, g.rows(a, ids) for rows",
    ),
    "__setitem__": ("operator [] =", "nodes do not change; g.concat(a, b) joins values"),
    "__len__": ("len()", "a.shape has the dimensions"),
    "__iter__": ("elements", "use g.columns(a, start, stop) for parts, g.results(a) where an op has several"),
    "__call__": ("call", "use layer.linear(x, name) for a matrix of the file, g.mul_mat(weight, x) for any"),
    "__array__": ("NumPy array", _NUMPY),
    "__array_ufunc__": ("NumPy functions", _NUMPY),
    "__array_function__": ("NumPy functions", _NUMPY),
}
Class = TypeVar("Class", bound=type)


def _refusing(what: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(self: object, *operands: object, **rest: object) -> NoReturn:
        error = GraphError(f"nodes have no {what}: {instead}; got {self!r}{called_from()}")
        error.located = True
        raise error

    return refuse


def _missing(self: object, name: str) -> NoReturn:
    method = ELSEWHERE.get(name)
    instead = f"use g.{method}" if method else "what is computed of it is a method of g"
    raise AttributeError(f"a node has no {name!r}: {instead}")


def without_operators(cls: Class) -> Class:
    """Make operators and unknown names on instances of a class errors with advice; returns the class."""
    methods: dict[str, Any] = {name: _refusing(*what) for name, what in _REFUSED.items()}
    methods |= {"__bool__": lambda self: True, "__getattr__": _missing}
    for name, refuse in methods.items():
        setattr(cls, name, refuse)
    return cls


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
