"""Ways through a tree: its expressions and statements, and what is safe to move or repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from graphml_gpu.language.tree import (
    Across,
    Assign,
    Atomic,
    Binary,
    Call,
    Convert,
    Expression,
    For,
    If,
    Index,
    Lane,
    LiteralValue,
    Load,
    Name,
    Print,
    Scalar,
    Select,
    SetLane,
    Statement,
    Store,
    Unary,
    Uniform,
    While,
)
from graphml_gpu.language.types import BOOL

_OPERANDS: dict[type[Expression], Callable[[Any], tuple[Expression, ...]]] = {
    Load: lambda load: (load.index,),
    Lane: lambda lane: (lane.value,),
    Unary: lambda unary: (unary.value,),
    Binary: lambda binary: (binary.left, binary.right),
    Select: lambda select: (select.condition, select.yes, select.no),
    Convert: lambda convert: convert.values,
    Call: lambda call: call.values,
}


def walk(expression: Expression) -> list[Expression]:
    """The expression and all in it."""
    waiting, parts = [expression], []
    while waiting:
        part = waiting.pop()
        parts.append(part)
        operands = _OPERANDS.get(type(part))
        if operands is not None:
            waiting.extend(operands(part))
    return parts


def expressions_of(statement: Statement) -> tuple[Expression, ...]:
    """The expressions that a statement itself works out, without those of inner blocks."""
    match statement:
        case Assign() | SetLane() | Uniform():
            return (statement.value,)
        case Store() | Atomic():
            return (statement.index, statement.value)
        case Across():
            return (statement.value,) if statement.by is None else (statement.value, statement.by)
        case If():
            return (statement.condition,)
        case For():
            return (statement.begin, statement.end, statement.step)
        case While():
            return () if statement.condition is None else (statement.condition,)
        case Print():
            return tuple(value for value in statement.values if not isinstance(value, str))
    return ()


def blocks_of(statement: Statement) -> tuple[list[Statement], ...]:
    """The inner blocks of a statement."""
    match statement:
        case If():
            return (statement.yes, statement.no)
        case For() | While():
            return (statement.body,)
    return ()


def all_statements(block: list[Statement]) -> Iterator[Statement]:
    """Every statement of a block and of those in it."""
    for statement in block:
        yield statement
        for inner in blocks_of(statement):
            yield from all_statements(inner)


def all_expressions(block: list[Statement]) -> Iterator[Expression]:
    """Every expression of a block, with those in it."""
    for statement in all_statements(block):
        for expression in expressions_of(statement):
            yield from walk(expression)


def is_stable(expression: Expression) -> bool:
    """Whether the value stays what it is when other statements run first: no loads, no mutable variables."""
    return not any(
        isinstance(part, Load) or (isinstance(part, Name) and part.variable.mutable)
        for part in walk(expression)
    )


def is_plain(expression: Expression) -> bool:
    """Whether the value can be written twice at no cost: a literal, argument, index or fixed variable."""
    match expression:
        case Name():
            return not expression.variable.mutable
        case Lane():
            return is_plain(expression.value)
        case LiteralValue() | Scalar() | Index():
            return True
    return False


def never_negative(expression: Expression) -> bool:
    """Whether an integer is known to be 0 or more: by its type, its operator, or how its loop counts."""
    if expression.type.kind == "u32":
        return True
    match expression:
        case LiteralValue(value=value):
            return value >= 0
        case Name(variable=variable):
            return variable.never_negative
        case Select(yes=yes, no=no):
            return never_negative(yes) and never_negative(no)
        case Convert(values=(Index(which="local_id" | "local_index" | "subgroup_lane"),)):
            return True
        case Binary(operator="&", left=left, right=right) | Call(name="max", values=(left, right)):
            return never_negative(left) or never_negative(right)
        case Binary(operator=">>", left=left):
            return never_negative(left)
        case Binary(operator="//" | "%", left=left, right=right) | Call(name="min", values=(left, right)):
            return never_negative(left) and never_negative(right)
    return False


def negated(expression: Expression) -> Expression | None:
    """The float whose sign the expression changes; None where it is another expression."""
    match expression:
        case (
            Unary(operator="-", value=value)
            | Binary(operator="*" | "/", left=value, right=LiteralValue(value=-1))
            | Binary(operator="*", left=LiteralValue(value=-1), right=value)
        ) if value.type.is_float and value.type == expression.type:
            return value
    return None


def has_load(expression: Expression) -> bool:
    """Whether working it out reads an array, where an index out of bounds could do harm."""
    return any(isinstance(part, Load) for part in walk(expression))


def truth(value: bool) -> LiteralValue:
    """True or False as an expression."""
    return LiteralValue(value, BOOL)


def touched(statements: Iterable[Statement], expressions: Iterable[Expression]) -> set[str]:
    """Names of the arrays that statements and expressions read or write."""
    read = {part.array.name for part in expressions if isinstance(part, Load)}
    return read | {statement.array.name for statement in statements if isinstance(statement, Store | Atomic)}
