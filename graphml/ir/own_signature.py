"""The signature of a function that declares an op: operands before `*`, attributes with types after it.

Knows Python's signatures; nothing of arrays or graphs.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any, NoReturn, get_type_hints

from graphml.errors import GraphError
from graphml.ir.op import Attribute
from graphml.ir.source import Source, called_from

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_RESERVED = frozenset(("name", "begin", "end", "out", "rows"))
_RESERVED_ATTRIBUTES = frozenset(("self", "op", "fill"))  # parameters of `g.call` and `sample`
_LIMIT = 1 << 63
KINDS: Mapping[Any, str] = {
    int: "a whole number", float: "a number", bool: "True or False", str: "a text",
    tuple[int, ...]: "a tuple of whole numbers", tuple[float, ...]: "a tuple of numbers",
}  # fmt: skip
"""The types of attributes, and their words for errors."""


def place_of(function: Callable[..., Any]) -> Source:
    """File and line of a function."""
    code = getattr(function, "py_func", function).__code__
    return Source(code.co_filename, code.co_firstlineno)


@dataclass(frozen=True)
class OwnSignature:
    """What a declaring function says.

    operands: names, in order. kinds: attribute -> its type. defaults: attribute -> default, None where it is
    required. source: file and line.
    """

    name: str
    operands: tuple[str, ...]
    kinds: Mapping[str, Any]
    defaults: Mapping[str, Attribute | None]
    source: Source

    def fail(self, reason: str) -> NoReturn:
        """Raise the error for this op."""
        raise GraphError(f"op {self.name!r} ({self.source}): {reason}")

    def numbers_of(self, what: str, names: Any) -> tuple[int, ...]:
        """The numbers of some operands; an error for anything but names of operands in a tuple or a list."""
        is_names = isinstance(names, tuple | list) and all(name in self.operands for name in names)
        if not is_names:
            self.fail(f"{what}: wanted names of operands in a tuple, of {self.operands}; got {names!r}")
        return tuple(map(self.operands.index, names))

    def fitted(self, attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
        """The attributes in the declared types; a `GraphError` for values of others."""
        return {name: fitted(name, self.kinds[name], value) for name, value in attributes.items()}

    def with_names(self) -> inspect.Signature:
        """Of the builder's method: operands, attributes by name, and the node's name."""
        kind = inspect.Parameter
        parameters = [kind(name, kind.POSITIONAL_OR_KEYWORD) for name in self.operands]
        for name, annotation in self.kinds.items():
            default = kind.empty if self.defaults[name] is None else self.defaults[name]
            parameters.append(kind(name, kind.KEYWORD_ONLY, default=default, annotation=annotation))
        return inspect.Signature([*parameters, kind("name", kind.KEYWORD_ONLY, default=None)])


def fitted(name: str, kind: Any, value: Any) -> Attribute:
    """The value as an attribute of this type; a `GraphError` for any other."""
    for item in value if isinstance(value, tuple) else (value,):
        if type(item) is int and not -_LIMIT <= item < _LIMIT:
            raise GraphError(f"attribute {name!r}: wanted numbers of 64 bits; got {value!r:.60}")
    if kind is float and _is_number(value):
        return float(value)
    is_tuple = isinstance(value, tuple)
    if kind == tuple[float, ...] and is_tuple and all(map(_is_number, value)):
        return tuple(map(float, value))
    if kind == tuple[int, ...] and is_tuple and all(type(item) is int for item in value):
        return tuple(value)
    if type(value) is not kind:
        raise GraphError(f"attribute {name!r}: wanted {KINDS[kind]}; got {value!r}")
    plain: Attribute = value
    return plain


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _type_of(parameter: inspect.Parameter, function: FunctionType, declared: OwnSignature) -> Any:
    """The type of an attribute; those of operands are for a person, and need not be known at run time."""
    if parameter.annotation is inspect.Parameter.empty:
        return None
    said = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return get_type_hints(said, function.__globals__)[parameter.name]
    except Exception as error:
        declared.fail(
            f"attribute {parameter.name!r}: its type {parameter.annotation!r} cannot be read: "
            f"{type(error).__name__}: {error}"
        )


def read_signature(function: Callable[..., Any], name: str | None = None, skipped: int = 0) -> OwnSignature:
    """The signature of a function; `GraphError` for one that declares no op.

    name: without, the function's. skipped: parameters at the beginning that are no operands, such as the
    builder.
    """
    python = getattr(function, "py_func", function)
    if not isinstance(python, FunctionType):
        what = f"op {name!r}" if name else "op"
        raise GraphError(f"{what}: wanted a function, made by `def`; got {function!r}{called_from()}")
    name = function.__name__ if name is None else name
    empty = OwnSignature(name, (), {}, {}, place_of(function))
    if not isinstance(name, str) or not _NAME.fullmatch(name) or keyword.iskeyword(name):
        empty.fail("wanted a name of letters, digits and _, as the text of a graph keeps it")
    kinds = inspect.Parameter
    operands: list[str] = []
    types: dict[str, Any] = {}
    defaults: dict[str, Attribute | None] = {}
    for parameter in list(inspect.signature(function).parameters.values())[skipped:]:
        is_attribute = parameter.kind is kinds.KEYWORD_ONLY
        if parameter.name in _RESERVED or (is_attribute and parameter.name in _RESERVED_ATTRIBUTES):
            empty.fail(f"parameter {parameter.name!r}: the name has a meaning of its own; wanted another")
        if is_attribute:
            types[parameter.name] = _type_of(parameter, python, empty)
            if types[parameter.name] not in KINDS:
                empty.fail(
                    f"attribute {parameter.name!r}: wanted a type: int, float, bool, str, tuple[int, ...] or "
                    f"tuple[float, ...]; got {types[parameter.name]}"
                )
            has_none = parameter.default is kinds.empty
            try:
                defaults[parameter.name] = (
                    None if has_none else fitted(parameter.name, types[parameter.name], parameter.default)
                )
            except GraphError as error:
                empty.fail(str(error))
        elif (
            parameter.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
            or parameter.default is not kinds.empty
        ):
            empty.fail(
                f"parameter {parameter.name!r}: wanted operands without defaults, then `*`, then attributes"
            )
        else:
            operands.append(parameter.name)
    if not operands:
        empty.fail("wanted at least one operand before `*`")
    return OwnSignature(name, tuple(operands), types, defaults, empty.source)
