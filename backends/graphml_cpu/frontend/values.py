"""What a name means while a kernel's function is emitted, and what it means where several ways meet.

Known: a Python object, from a factory or a literal. Typed: an LLVM value. Items: a tuple of values, of which
LLVM sees only the items. Counted: a `range`. Ahead: assigned later in the loop. Lost: assigned only in a loop
that has ended. Unusable: what cannot be read. Knows no syntax.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ir

from graphml_cpu.frontend import operators, types
from graphml_cpu.frontend.types import LlvmType


class UncompilableError(Exception):
    """What is written cannot be compiled; the text says why."""


@dataclass(frozen=True)
class Known:
    """A Python object: a number, a function, a type, a string."""

    object: Any


@dataclass(frozen=True, eq=False)
class Typed:
    """A number or vector in an LLVM value."""

    kind: LlvmType
    value: ir.Value


@dataclass(frozen=True)
class Items:
    """The values of a tuple."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Counted:
    """A `range`."""

    start: Value
    stop: Value
    step: Value


@dataclass(frozen=True)
class Lost:
    """A name that only a loop assigned. key: the loop and the name; kind: the type as a structure."""

    key: tuple[int, str]
    kind: Any


@dataclass(frozen=True)
class ValueAhead:
    """A name without a value yet in a loop that assigns it: in a later round it has the one before's."""

    key: tuple[int, str]


@dataclass(frozen=True)
class Unusable:
    """A name that must not be read; `why` is said if it is."""

    why: str


Value = Known | Typed | Items | Counted | Lost | ValueAhead | Unusable
NOTHING = Known(None)


def known(value: Any) -> Value:
    """A Python object as a value; tuples become their items."""
    return Items(tuple(known(element) for element in value)) if isinstance(value, tuple) else Known(value)


def as_python(value: Value) -> Any:
    """The Python object of a value that is known in all its parts. Raises `LookupError` for others."""
    if isinstance(value, Known):
        return value.object
    if isinstance(value, Items):
        return tuple(as_python(element) for element in value.values)
    raise LookupError


def number(value: Value) -> Typed:
    """A number or vector as an LLVM value: a constant if it is known. Else raises `UncompilableError`."""
    if isinstance(value, Typed):
        return value
    if isinstance(value, Known):
        constant = value.object
        if isinstance(constant, bool):
            return Typed(types.boolean, types.boolean.llvm_type(int(constant)))
        if isinstance(constant, int):
            if not -(2**63) <= constant < 2**64:
                raise UncompilableError(f"{constant} has more than 64 bits")
            kind = types.int64 if constant < 2**63 else types.uint64
            return Typed(kind, kind.llvm_type(constant))
        if isinstance(constant, float):
            return Typed(types.float64, types.float64.llvm_type(constant))
    raise UncompilableError(f"a number or vector is wanted, not {described(value)}")


def described(value: Value) -> str:
    """A value in words, for errors."""
    if isinstance(value, Unusable):
        return value.why
    if isinstance(value, Known):
        return repr(value.object)
    return repr(structure(value))


def structure(value: Value) -> Any:
    """The types of a value, which decide what it can be merged with and which function is called."""
    if isinstance(value, Typed):
        return value.kind
    if isinstance(value, Items):
        return tuple(structure(element) for element in value.values)
    if isinstance(value, Known):
        return number(value).kind if isinstance(value.object, (bool, int, float)) else value
    raise UncompilableError(f"it cannot be passed on: {described(value)}")


def flat(value: Value) -> Iterator[Typed]:
    """The LLVM values in a value, in order; what is known and no number has none."""
    if isinstance(value, Items):
        for element in value.values:
            yield from flat(element)
    elif isinstance(value, Typed) or (
        isinstance(value, Known) and isinstance(value.object, (bool, int, float))
    ):
        yield number(value)


def rebuilt(kind: Any, parts: Iterator[ir.Value]) -> Value:
    """A value of a `structure`, with new LLVM values in the order of `flat`."""
    if isinstance(kind, tuple):
        return Items(tuple(rebuilt(element, parts) for element in kind))
    return kind if isinstance(kind, Known) else Typed(kind, next(parts))


def llvm_types(kind: Any) -> list[ir.Type]:
    """The LLVM types of a structure's values, in the order of `flat`."""
    if isinstance(kind, tuple):
        return [llvm_type for element in kind for llvm_type in llvm_types(element)]
    return [] if isinstance(kind, Known) else [kind.llvm_type]


def unified(a: Any, b: Any) -> Any:
    """The structure that values of both structures can become; None where there is none."""
    if a is b or a == b:
        return a
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        parts = tuple(unified(part, other) for part, other in zip(a, b, strict=True))
        return None if None in parts else parts
    return operators.common(a, b) if isinstance(a, LlvmType) and isinstance(b, LlvmType) else None


def converted(builder: ir.IRBuilder, value: Value, kind: Any) -> list[ir.Value]:
    """The LLVM values of a value, converted to those of a structure."""
    if isinstance(kind, tuple):
        assert isinstance(value, Items)
        pairs = zip(value.values, kind, strict=True)
        return [part for element, wanted in pairs for part in converted(builder, element, wanted)]
    if isinstance(kind, Known):
        return []
    typed = number(value)
    return [operators.cast(builder, typed.value, typed.kind, kind)]


Source = tuple[ir.Block, Value | None]


def merged(builder: ir.IRBuilder, name: str, sources: Sequence[Source], block: ir.Block) -> Value:
    """What `name` means in `block`, which follows the ends of others; None where it is not assigned there.

    Conversions go to the ends of those blocks, which have no terminators yet, and phis to the `block`.
    """
    values = [value for _, value in sources if value is not None]
    if all(value is values[0] for value in values) and len(values) == len(sources):
        return values[0]
    if (settled := _without_phi(values)) is not None:
        return settled
    values = [value for value in values if not isinstance(value, ValueAhead)]
    kind = _structure_of_all(values)
    if kind is None:
        return Unusable(f"{name}, which is {' or '.join(dict.fromkeys(map(described, values)))}")
    wanted = llvm_types(kind)
    columns = []
    for source, held in sources:
        if held is None:
            columns.append([ir.Constant(llvm_type, ir.Undefined) for llvm_type in wanted])
            continue
        builder.position_at_end(source)
        columns.append(converted(builder, held, kind))
    builder.position_at_end(block)
    phis = []
    for index, llvm_type in enumerate(wanted):
        phi = builder.phi(llvm_type)
        for (source, _), column in zip(sources, columns, strict=True):
            phi.add_incoming(column[index], source)
        phis.append(phi)
    return rebuilt(kind, iter(phis))


def _without_phi(values: Sequence[Value]) -> Value | None:
    """What the values of several ends are where no phi can say it, or none has to."""
    for value in values:
        if isinstance(value, Lost | Unusable):
            return value
    ahead = next((value for value in values if isinstance(value, ValueAhead)), None)
    if ahead is None:
        alike = all(isinstance(value, Known) and _same(value, values[0]) for value in values)
        return values[0] if alike else None
    assigned = [value for value in values if not isinstance(value, ValueAhead)]
    if not assigned:
        return ahead
    kind = _structure_of_all(assigned)
    return None if kind is None else Lost(ahead.key, kind)


def _structure_of_all(values: Sequence[Value]) -> Any:
    """The structure that all values can become; None where there is none."""
    try:
        return functools.reduce(lambda a, b: None if a is None else unified(a, b), map(structure, values))
    except UncompilableError:
        return None


def _same(a: Value, b: Value) -> bool:
    assert isinstance(a, Known)
    assert isinstance(b, Known)
    if isinstance(a.object, float) and isinstance(b.object, float):
        return a.object.hex() == b.object.hex()
    return type(a.object) is type(b.object) and bool(a.object == b.object)
