"""Kinds of arguments of the builder's methods, each with its words for errors and its test.

A parameter's annotation names its kind: a plain type (`Node`, `float`), or one of the narrower names here.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Annotated, Any, Union, get_args, get_origin

from graphml.ir.dtype import DType
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op
from graphml.ir.shape import Shape, Symbol

Nodes = Mapping[Node, None]
"""The nodes of the graph that is being built."""
_INFINITE = float("inf")


@dataclass(frozen=True)
class ArgumentKind:
    """The requirement of an argument: words for an error, and a test of a value."""

    words: str
    holds: Callable[[Any, Nodes], bool]


def _is_number(value: Any, nodes: Nodes) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not isnan(value)


def _is_finite(value: Any, nodes: Nodes) -> bool:
    if type(value) is not float and not _is_number(value, nodes):
        return False
    return bool(-_INFINITE < value < _INFINITE)


def _is_node(value: Any, nodes: Nodes) -> bool:
    return type(value) is Node and value in nodes


def _is_shape(value: Any, nodes: Nodes) -> bool:
    if type(value) is not tuple:
        return False
    for dim in value:  # noqa: SIM110 - runs for every tensor
        if type(dim) is not int and type(dim) is not Symbol:
            return False
    return True


def whole(least: int) -> ArgumentKind:
    """A whole number from `least` on."""
    return ArgumentKind(
        f"a whole number of at least {least}", lambda value, nodes: type(value) is int and value >= least
    )


def number(words: str, holds: Callable[[float], bool]) -> ArgumentKind:
    """A finite number that fulfils a condition."""
    return ArgumentKind(words, lambda value, nodes: _is_finite(value, nodes) and holds(value))


def one_of(*values: str) -> ArgumentKind:
    """One of some texts."""
    return ArgumentKind(
        " or ".join(map(repr, values)), lambda value, nodes: isinstance(value, str) and value in values
    )


Count = Annotated[int, whole(1)]
Index = Annotated[int, whole(0)]
Positive = Annotated[float, number("a finite number above 0", lambda value: value > 0)]
NonNegative = Annotated[float, number("a finite number of at least 0", lambda value: value >= 0)]
Extended = Annotated[float, ArgumentKind("a number or an infinity", _is_number)]
RopeMode = Annotated[str, one_of("norm", "neox")]

NAMED = {"Count": Count, "Index": Index, "Positive": Positive, "NonNegative": NonNegative,
         "Extended": Extended, "RopeMode": RopeMode}  # fmt: skip
"""The kinds narrower than a type, by name."""
NODE = ArgumentKind("a node of this graph", _is_node)
_NONE = ArgumentKind("None", lambda value, nodes: value is None)
_ANYTHING = ArgumentKind("anything", lambda value, nodes: True)
_PLAIN: dict[object, ArgumentKind] = {
    Node: NODE,
    int: ArgumentKind("a whole number", lambda value, nodes: type(value) is int),
    float: ArgumentKind("a finite number", _is_finite),
    bool: ArgumentKind("True or False", lambda value, nodes: isinstance(value, bool)),
    str: ArgumentKind("a text", lambda value, nodes: isinstance(value, str)),
    type(None): _NONE,
    DType: ArgumentKind("a dtype of graphml.ir.dtype", lambda value, nodes: isinstance(value, DType)),
    Op: ArgumentKind("an op", lambda value, nodes: isinstance(value, Op)),
    Attribute: ArgumentKind(
        "a number, a text or a tuple of numbers",
        lambda value, nodes: isinstance(value, int | float | str | tuple),
    ),
    Shape: ArgumentKind("a tuple of whole numbers and symbols", _is_shape),
}


def kind_of(annotation: Any) -> ArgumentKind:
    """The kind of an annotation; an unknown annotation allows any value."""
    known = _PLAIN.get(annotation)
    if known is not None:
        return known
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return next((part for part in parts[1:] if isinstance(part, ArgumentKind)), kind_of(parts[0]))
    if origin in (Union, types.UnionType):
        return _either([kind_of(part) for part in parts])
    if origin is tuple and parts[1:] == (Ellipsis,):
        return _each("a tuple", tuple, kind_of(parts[0]))
    if origin is Sequence:
        return _each("a list", (tuple, list, range), kind_of(parts[0]))
    return _ANYTHING


def _either(several: list[ArgumentKind]) -> ArgumentKind:
    words = " or ".join(one.words for one in several)
    if several[1:] == [_NONE]:  # by far the most common, and run for every node
        holds = several[0].holds
        return ArgumentKind(words, lambda value, nodes: value is None or holds(value, nodes))
    return ArgumentKind(words, lambda value, nodes: any(one.holds(value, nodes) for one in several))


def _each(words: str, kind: type[Any] | tuple[type[Any], ...], one: ArgumentKind) -> ArgumentKind:
    return ArgumentKind(
        f"{words} with {one.words} in each place",
        lambda value, nodes: isinstance(value, kind) and all(one.holds(item, nodes) for item in value),
    )
