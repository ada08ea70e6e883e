"""Ways through a tree: its expressions and statements, and what is safe to move or repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from graphml_gpu.language import tree as nodes
from graphml_gpu.language.types import BOOL

_OPERANDS: dict[type[nodes.Expression], Callable[[Any], tuple[nodes.Expression, ...]]] = {
    nodes.Load: lambda load: (load.index,),
    nodes.Lane: lambda lane: (lane.value,),
    nodes.Unary: lambda unary: (unary.value,),
    nodes.Binary: lambda binary: (binary.left, binary.right),
    nodes.Select: lambda select: (select.condition, select.yes, select.no),
    nodes.Convert: lambda convert: convert.values,
    nodes.Call: lambda call: call.values,
}


def walk(expression: nodes.Expression) -> list[nodes.Expression]:
    """The expression and all in it."""
    waiting, parts = [expression], []
    while waiting:
        part = waiting.pop()
        parts.append(part)
        operands = _OPERANDS.get(type(part))
        if operands is not None:
            waiting.extend(operands(part))
    return parts


def expressions_of(statement: nodes.Statement) -> tuple[nodes.Expression, ...]:
    """The expressions that a statement itself works out, without those of inner blocks."""
    match statement:
        case nodes.Assign() | nodes.SetLane() | nodes.Uniform():
            return (statement.value,)
        case nodes.Store() | nodes.Atomic():
            return (statement.index, statement.value)
        case nodes.Across():
            return (statement.value,) if statement.by is None else (statement.value, statement.by)
        case nodes.If():
            return (statement.condition,)
        case nodes.For():
            return (statement.begin, statement.end, statement.step)
        case nodes.While():
            return () if statement.condition is None else (statement.condition,)
        case nodes.Print():
            return tuple(value for value in statement.values if not isinstance(value, str))
    return ()


def blocks_of(statement: nodes.Statement) -> tuple[list[nodes.Statement], ...]:
    """The inner blocks of a statement."""
    match statement:
        case nodes.If():
            return (statement.yes, statement.no)
        case nodes.For() | nodes.While():
            return (statement.body,)
    return ()


def all_statements(block: list[nodes.Statement]) -> Iterator[nodes.Statement]:
    """Every statement of a block and of those in it."""
    for statement in block:
        yield statement
        for inner in blocks_of(statement):
            yield from all_statements(inner)


def all_expressions(block: list[nodes.Statement]) -> Iterator[nodes.Expression]:
    """Every expression of a block, with those in it."""
    for statement in all_statements(block):
        for expression in expressions_of(statement):
            yield from walk(expression)


def is_stable(expression: nodes.Expression) -> bool:
    """Whether the value stays what it is when other statements run first: no loads, no mutable variables."""
    return not any(
        isinstance(part, nodes.Load) or (isinstance(part, nodes.Name) and part.variable.mutable)
        for part in walk(expression)
    )


def is_plain(expression: nodes.Expression) -> bool:
    """Whether the value can be written twice at no cost: a literal, argument, index or fixed variable."""
    match expression:
        case nodes.Name():
            return not expression.variable.mutable
        case nodes.Lane():
            return is_plain(expression.value)
        case nodes.LiteralValue() | nodes.Scalar() | nodes.Index():
            return True
    return False


def never_negative(expression: nodes.Expression) -> bool:
    """Whether an integer is known to be 0 or more: by its type, its operator, or how its loop counts."""
    if expression.type.kind == "u32":
        return True
    match expression:
        case nodes.LiteralValue(value=value):
            return value >= 0
        case nodes.Name(variable=variable):
            return variable.never_negative
        case nodes.Select(yes=yes, no=no):
            return never_negative(yes) and never_negative(no)
        case nodes.Convert(values=(nodes.Index(which="local_id" | "local_index" | "subgroup_lane"),)):
            return True
        case (
            nodes.Binary(operator="&", left=left, right=right) | nodes.Call(name="max", values=(left, right))
        ):
            return never_negative(left) or never_negative(right)
        case nodes.Binary(operator=">>", left=left):
            return never_negative(left)
        case (
            nodes.Binary(operator="//" | "%", left=left, right=right)
            | nodes.Call(name="min", values=(left, right))
        ):
            return never_negative(left) and never_negative(right)
    return False


def negated(expression: nodes.Expression) -> nodes.Expression | None:
    """The float whose sign the expression changes; None where it is another expression."""
    match expression:
        case (
            nodes.Unary(operator="-", value=value)
            | nodes.Binary(operator="*" | "/", left=value, right=nodes.LiteralValue(value=-1))
            | nodes.Binary(operator="*", left=nodes.LiteralValue(value=-1), right=value)
        ) if value.type.is_float and value.type == expression.type:
            return value
    return None


def has_load(expression: nodes.Expression) -> bool:
    """Whether working it out reads an array, where an index out of bounds could do harm."""
    return any(isinstance(part, nodes.Load) for part in walk(expression))


def truth(value: bool) -> nodes.LiteralValue:
    """True or False as an expression."""
    return nodes.LiteralValue(value, BOOL)


def touched(statements: Iterable[nodes.Statement], expressions: Iterable[nodes.Expression]) -> set[str]:
    """Names of the arrays that statements and expressions read or write."""
    read = {part.array.name for part in expressions if isinstance(part, nodes.Load)}
    return read | {
        statement.array.name for statement in statements if isinstance(statement, nodes.Store | nodes.Atomic)
    }
