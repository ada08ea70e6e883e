"""Kinds of arguments of the builder's methods, each with its words for errors and its test.

A parameter's annotation names its kind: a plain type (`Node`, `float`), or one of the narrower names here.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from math import isnan
from typing import Annotated, Any, Union, get_args, get_origin

import numpy as np

from graphml.errors import GraphError
from graphml.ir.dtype import F32, I32, as_dtype, is_dtype
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op
from graphml.ir.shape import Shape, Symbol

Nodes = Mapping[Node, None]
"""The nodes of the graph that is being built."""
_INFINITE = float("inf")
_QUICK_NUMBER = "_type({v}) is _float and {v} == {v}"


@dataclass(frozen=True)
class ArgumentKind:
    """The requirement of an argument: words for an error, and a test of a value.

    quick: an expression over `{v}`, the value, and `_nodes` that is true of most values that pass and of none
    that do not; empty: the test itself. See `quick_check`.
    """

    words: str
    holds: Callable[[Any, Nodes], bool]
    quick: str = ""


def _is_number(value: Any, nodes: Nodes) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not isnan(value)


def _is_finite(value: Any, nodes: Nodes) -> bool:
    if type(value) is not float and not _is_number(value, nodes):
        return False
    return bool(-_INFINITE < value < _INFINITE)


def _is_node(value: Any, nodes: Nodes) -> bool:
    return type(value) is Node and value in nodes


def _are_numbers(value: Any, nodes: Nodes) -> bool:
    if isinstance(value, Node | str | bytes):
        return False
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, GraphError):  # lists of several lengths, or of nodes
        return False
    return array.dtype.kind in "biuf" and 1 <= array.size <= 65_536


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
        f"a whole number of at least {least}",
        lambda value, nodes: type(value) is int and value >= least,
        f"_type({{v}}) is _int and {{v}} >= {least}",
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
Extended = Annotated[float, ArgumentKind("a number or an infinity", _is_number, _QUICK_NUMBER)]
RopeMode = Annotated[str, one_of("norm", "neox")]
Numbers = Annotated[
    Any, ArgumentKind("a number, an array or nested lists of 1 to 65536 numbers", _are_numbers)
]
AnyDType = Annotated[
    Any, ArgumentKind("a dtype, as 'f32', 'q4_0' or numpy.float32", lambda value, nodes: is_dtype(value))
]
_CAST = (F32, I32)
CastTo = Annotated[
    Any, ArgumentKind("'f32' or 'i32'", lambda value, nodes: is_dtype(value) and as_dtype(value) in _CAST)
]

NAMED = {"Count": Count, "Index": Index, "Positive": Positive, "NonNegative": NonNegative,
         "Extended": Extended, "RopeMode": RopeMode, "CastTo": CastTo, "AnyDType": AnyDType,
         "Numbers": Numbers}  # fmt: skip
"""The kinds narrower than a type, by name."""
NODE = ArgumentKind("a node of this graph", _is_node, "{v} in _nodes")
_NONE = ArgumentKind("None", lambda value, nodes: value is None, "{v} is None")
_ANYTHING = ArgumentKind("anything", lambda value, nodes: True, "True")
_PLAIN: dict[object, ArgumentKind] = {
    Node: NODE,
    int: ArgumentKind("a whole number", lambda value, nodes: type(value) is int, "_type({v}) is _int"),
    float: ArgumentKind("a finite number", _is_finite, "_type({v}) is _float and -_inf < {v} < _inf"),
    bool: ArgumentKind("True or False", lambda value, nodes: isinstance(value, bool), "_type({v}) is _bool"),
    str: ArgumentKind("a text", lambda value, nodes: isinstance(value, str), "_type({v}) is _str"),
    type(None): _NONE,
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
    words = " or ".join(kind.words for kind in several)
    all_quick = all(kind.quick for kind in several)
    quick = " or ".join(f"({kind.quick})" for kind in reversed(several)) if all_quick else ""
    return ArgumentKind(words, lambda value, nodes: any(kind.holds(value, nodes) for kind in several), quick)


def _each(words: str, kind: type[Any] | tuple[type[Any], ...], inner: ArgumentKind) -> ArgumentKind:
    return ArgumentKind(
        f"{words} with {inner.words} in each place",
        lambda value, nodes: isinstance(value, kind) and all(inner.holds(item, nodes) for item in value),
    )


def quick_check(parameters: Sequence[Parameter], kinds: Mapping[str, ArgumentKind]) -> Callable[..., bool]:
    """A function of the nodes and the arguments of a call: True only if every argument passes its test.

    False or a `TypeError` may also be for unusual arguments that pass. One expression for all parameters,
    without loops over names and tests, since it is evaluated for every node that is built.
    """
    names: dict[str, Any] = {
        "_type": type, "_int": int, "_float": float, "_bool": bool, "_str": str, "_inf": _INFINITE,
    }  # fmt: skip
    texts, tests = ["_nodes"], []
    for i, parameter in enumerate(parameters):
        name, test = parameter.name, kinds[parameter.name].quick or f"_holds_{i}({{v}}, _nodes)"
        names[f"_holds_{i}"], names[f"_default_{i}"] = kinds[name].holds, parameter.default
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            is_named = parameter.kind is Parameter.VAR_KEYWORD
            texts.append(f"**{name}" if is_named else f"*{name}")
            values = f"{name}.values()" if is_named else name
            tests.append(f"(not {name} or all([{test.format(v='_one')} for _one in {values}]))")
            continue
        if parameter.kind is Parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in texts):
            texts.append("*")
        texts.append(name if parameter.default is Parameter.empty else f"{name}=_default_{i}")
        tests.append(f"({test.format(v=name)})")
    quick: Callable[..., bool] = eval(f"lambda {', '.join(texts)}: {' and '.join(tests) or True}", names)
    return quick
