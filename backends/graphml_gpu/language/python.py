"""A kernel's tree as Python, for the emulator: one call an invocation, a generator where invocations meet.

At a barrier or an operation across a subgroup an invocation yields what it waits for. Values are NumPy
scalars of the types they have on a device, so that integers wrap and floats round as they do there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from graphml_gpu.language.intrinsics import CONVERSIONS, INTRINSICS
from graphml_gpu.language.tree import (
    Across,
    Assign,
    Atomic,
    Barrier,
    Binary,
    Call,
    Convert,
    Declare,
    Expression,
    For,
    If,
    Index,
    Lane,
    Leave,
    Literal,
    Load,
    Name,
    Print,
    Scalar,
    Select,
    SetLane,
    Statement,
    Store,
    Tree,
    Unary,
    Uniform,
    While,
)

_COMPARED = {"<": "below", "<=": "most", ">": "above", ">=": "least", "==": "equal", "!=": "unlike"}
_INTEGER = {"//": "rt.divide", "%": "rt.remainder", "<<": "rt.shift_left", ">>": "rt.shift_right"}


def python(tree: Tree, title: str) -> str:
    """The text of a function of the runtime `rt`, `rt_place`, the arrays and the scalars."""
    arrays = [array.name for array in (*tree.buffers, *tree.arrays, *tree.tables)]
    arguments = ["rt", "rt_place", *arrays, *(name for name, _ in tree.scalars)]
    body = list(_lines(tree.body, 1)) or ["    pass"]
    return "\n".join([f"# {title}", f"def {tree.name}({', '.join(arguments)}):", *body, ""])


def _lines(block: list[Statement], depth: int) -> Iterator[str]:
    margin = "    " * depth
    for statement in block:
        for line in _statement(statement, depth):
            yield line if line.startswith(" ") else margin + line


def _block(block: list[Statement], depth: int) -> Iterator[str]:
    yield from _lines(block, depth)
    if all(isinstance(statement, Print) and not statement.values for statement in block):
        yield "    " * depth + "pass"


def _statement(statement: Statement, depth: int) -> Iterator[str]:
    match statement:
        case Assign():
            yield f"{statement.variable.name} = {_text(statement.value)}"
        case Declare():
            yield f"{statement.variable.name} = {_literal(Literal(0, statement.variable.type))}"
        case SetLane():
            name = statement.variable.name
            yield f"{name} = rt.with_lane({name}, {statement.lane}, {_text(statement.value)})"
        case Store():
            yield f"{statement.array.name}[{_text(statement.index)}] = {_text(statement.value)}"
        case Atomic():
            values = f"{statement.operator!r}, {_text(statement.index)}, {_text(statement.value)}"
            changed = f"{statement.array.name}.atomic({values})"
            yield f"{statement.result.name} = {changed}" if statement.result else changed
        case Across():
            by = "None" if statement.by is None else _text(statement.by)
            yield f"{statement.result.name} = yield ({statement.operator!r}, {_text(statement.value)}, {by})"
        case Barrier():
            yield f"yield ('barrier', {statement.where!r}, None)"
        case Uniform():
            value = _text(statement.value)
            yield f"{statement.result.name} = yield ('uniform', {statement.where!r}, {value})"
        case If() | For() | While():
            yield from _nested(statement, depth)
        case Leave():
            yield statement.how
        case Print():
            shown = ", ".join(repr(v) if isinstance(v, str) else _text(v) for v in statement.values)
            yield f"rt.show(rt_place, {shown})"


def _nested(statement: If | For | While, depth: int) -> Iterator[str]:
    match statement:
        case If():
            yield f"if {_text(statement.condition)}:"
            yield from _block(statement.yes, depth + 1)
            if statement.no:
                yield "    " * depth + "else:"
                yield from _block(statement.no, depth + 1)
        case For():
            bounds = ", ".join(_text(v) for v in (statement.begin, statement.end, statement.step))
            yield f"for {statement.variable.name} in rt.count({bounds}):"
            yield from _block(statement.body, depth + 1)
        case While():
            yield f"while {'True' if statement.condition is None else _text(statement.condition)}:"
            yield from _block(statement.body, depth + 1)


def _text(value: Expression) -> str:
    match value:
        case Literal():
            return _literal(value)
        case Name():
            return value.variable.name
        case Scalar():
            return value.name
        case Index():
            return f"rt_place.{value.which}" + ("" if value.dimension is None else f"[{value.dimension}]")
        case Load():
            return f"{value.array.name}[{_text(value.index)}]"
        case Lane():
            return f"{_text(value.value)}[{value.lane}]"
        case Unary():
            return f"({value.operator} {_text(value.value)})"
        case Binary():
            return _binary(value)
        case Select():
            return f"({_text(value.yes)} if {_text(value.condition)} else {_text(value.no)})"
        case Convert() | Call():
            return _call(value)


def _binary(value: Binary) -> str:
    left, right = _text(value.left), _text(value.right)
    if value.operator in _INTEGER and value.type.is_integer:
        return f"{_INTEGER[value.operator]}({left}, {right})"
    if value.operator in _COMPARED and value.left.type.is_float:
        return f"rt.{_COMPARED[value.operator]}({left}, {right})"
    return f"({left} {value.operator} {right})"


def _call(value: Convert | Call) -> str:
    texts = [_text(operand) for operand in value.values]
    if isinstance(value, Convert):
        return f"rt.convert({_type(value.type.name)}, {', '.join(texts)})"
    form = INTRINSICS[value.name].python if value.name in INTRINSICS else CONVERSIONS[value.name][2]
    return form.format(*texts, type=_type(value.type.name))


def _type(name: str) -> str:
    return f"rt.{name}"


def _literal(literal: Literal) -> str:
    value = literal.value
    text = repr(value) if not isinstance(value, float) or math.isfinite(value) else f"float({str(value)!r})"
    if literal.type.kind == "bool":
        return str(bool(value))
    return (
        f"rt.convert({_type(literal.type.name)}, {text})"
        if literal.type.lanes > 1
        else f"rt.{literal.type.name}({text})"
    )
