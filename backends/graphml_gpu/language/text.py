"""The common part of the renderers: a tree as text in a language of C's kind. Knows neither of the two.

A `Dialect` says how a language spells what differs. Brackets are written wherever the two languages' orders
of operators could differ.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from graphml_gpu.language import tree as nodes
from graphml_gpu.language.features import Features
from graphml_gpu.language.types import ValueType
from graphml_gpu.language.walk import negated

_SPELLED = {"//": "/", "and": "&&", "or": "||"}
_RANK = {"*": 3, "//": 3, "/": 3, "%": 3, "+": 2, "-": 2, "<": 1, "<=": 1, ">": 1, ">=": 1, "==": 1, "!=": 1}
"""Operators that may stand bare within those of lower rank; all others are bracketed."""


_IN_PLACE = ("+", "-", "*")


class Dialect(ABC):
    """How a language spells what differs; texts of operands are spelled already.

    forever: the head of an endless loop. adds_to_index: an index is text that something is added to.
    least_i32, i32_suffix: how literals of i32 are spelled. keeps_negated: whether `-` may negate floats;
    where not, `negated` does.
    """

    forever: str
    adds_to_index: bool
    least_i32: str
    i32_suffix: str
    keeps_negated = True

    def __init__(self, tree: nodes.Tree, features: Features) -> None:
        self.tree, self.features = tree, features
        self.fence = any(buffer.access == "update" for buffer in tree.buffers)

    @abstractmethod
    def type(self, kind: ValueType) -> str:
        """The name of a type."""

    @abstractmethod
    def vector(self, kind: ValueType, texts: Sequence[str]) -> str:
        """A vector of these lanes, or of one in all."""

    @abstractmethod
    def not_finite(self, value: float, is_half: bool) -> str:
        """A literal of an infinity, or of no number."""

    @abstractmethod
    def convert(self, kind: ValueType, values: Sequence[nodes.Expression], texts: Sequence[str]) -> str:
        """Values as another type."""

    @abstractmethod
    def call(self, value: nodes.Call, texts: Sequence[str]) -> str:
        """A function's value."""

    @abstractmethod
    def select(self, condition: str, yes: str, no: str) -> str:
        """One of two values."""

    @abstractmethod
    def load(self, array: nodes.ArrayVariable, index: str) -> str:
        """An element."""

    @abstractmethod
    def store(self, array: nodes.ArrayVariable, index: str, value: str) -> str:
        """The statement that writes an element."""

    @abstractmethod
    def declare(self, variable: nodes.Variable, value: str | None) -> str:
        """The statement that declares a variable, with its first value if it has one."""

    @abstractmethod
    def count(self, variable: nodes.Variable, begin: str) -> str:
        """The beginning of a `for`."""

    @abstractmethod
    def special(self, statement: nodes.SpecialStatement, texts: Sequence[str]) -> str:
        """Its value on the last line of the text."""

    def negated(self, kind: ValueType, value: str) -> str:
        """A float with the other sign."""
        return f"-{value}"

    def index(self, value: nodes.Index) -> str:
        """The number of an invocation or a group."""
        return value.which if value.dimension is None else f"{value.which}.{'xyz'[value.dimension]}"

    def literal(self, literal: nodes.LiteralValue) -> str:
        """A number, or a vector of it."""
        value, kind = literal.value, literal.type
        if kind.lanes > 1:
            return self.vector(kind, [self.literal(nodes.LiteralValue(value, kind.scalar))])
        match kind.kind:
            case "bool":
                return "true" if value else "false"
            case "u32":
                return f"{value}u" if value < 65536 else f"{value:#x}u"
            case "i32":
                return self.least_i32 if value == -(2**31) else f"{value}{self.i32_suffix}"
        is_half = kind.kind == "f16" and self.features.f16
        if not math.isfinite(value):
            return self.not_finite(value, is_half)
        return f"{np.float16(value)!s}h" if is_half else f"{np.float32(value)!s}f"

    def values(self, table: nodes.ArrayVariable) -> str:
        """The numbers of a table, with commas between them."""
        return ", ".join(self.literal(nodes.LiteralValue(value, table.element)) for value in table.values)


def expression(dialect: Dialect, value: nodes.Expression) -> str:
    """The text of an expression."""
    return _ranked(dialect, value)[0]


def _ranked(dialect: Dialect, value: nodes.Expression) -> tuple[str, int]:
    """Text and rank: 9 where it needs no brackets anywhere."""
    if not dialect.keeps_negated and (operand := negated(value)) is not None:
        return dialect.negated(value.type, expression(dialect, operand)), 9
    return _spelled(dialect, value)


def _spelled(dialect: Dialect, value: nodes.Expression) -> tuple[str, int]:
    match value:
        case nodes.LiteralValue():
            text = dialect.literal(value)
            return text, 4 if text.startswith("-") else 9
        case nodes.Name():
            return value.variable.name, 9
        case nodes.Scalar():
            return value.name, 9
        case nodes.Index():
            return dialect.index(value), 9
        case nodes.Load():
            return dialect.load(value.array, _index(dialect, value.index)), 9
        case nodes.Lane():
            return f"{_bracketed(dialect, value.value, 9)}.{'xyzw'[value.lane]}", 9
        case nodes.Unary():
            sign = {"not": "!"}.get(value.operator, value.operator)
            return f"{sign}{_bracketed(dialect, value.value, 9)}", 4
        case nodes.Binary():
            return _binary(dialect, value)
        case nodes.Select():
            texts = [_bracketed(dialect, v, 1) for v in (value.condition, value.yes, value.no)]
            return dialect.select(*texts), 9
        case nodes.Convert():
            texts = [expression(dialect, v) for v in value.values]
            return dialect.convert(value.type, value.values, texts), 9
        case nodes.Call():
            return dialect.call(value, [expression(dialect, v) for v in value.values]), 9


def _binary(dialect: Dialect, value: nodes.Binary) -> tuple[str, int]:
    sign = _SPELLED.get(value.operator, value.operator)
    rank = _RANK.get(value.operator, 0)
    if rank in (2, 3):
        left, right = _bracketed(dialect, value.left, rank), _bracketed(dialect, value.right, rank + 1)
    elif rank == 1:
        left, right = _bracketed(dialect, value.left, 2), _bracketed(dialect, value.right, 2)
    elif value.operator in ("and", "or"):
        left, right = (_chained(dialect, v, value.operator) for v in (value.left, value.right))
    else:
        left, right = _bracketed(dialect, value.left, 9), _bracketed(dialect, value.right, 9)
    return f"{left} {sign} {right}", rank


def _index(dialect: Dialect, value: nodes.Expression) -> str:
    return _bracketed(dialect, value, 2 if dialect.adds_to_index else 0)


def _chained(dialect: Dialect, value: nodes.Expression, operator: str) -> str:
    if isinstance(value, nodes.Binary) and value.operator == operator:
        return expression(dialect, value)
    return _bracketed(dialect, value, 1)


def _bracketed(dialect: Dialect, value: nodes.Expression, least: int) -> str:
    text, rank = _ranked(dialect, value)
    return text if rank >= least else f"({text})"


def lines(dialect: Dialect, block: list[nodes.Statement], depth: int = 1) -> Iterator[str]:
    """The lines of a block, indented."""
    margin = "    " * depth
    for statement in block:
        for line in _statement(dialect, statement, depth):
            yield line if line.startswith(" ") else margin + line


def _statement(dialect: Dialect, statement: nodes.Statement, depth: int) -> Iterator[str]:
    def text(value: nodes.Expression) -> str:
        return expression(dialect, value)

    match statement:
        case nodes.Assign(declares=True):
            yield dialect.declare(statement.variable, text(statement.value))
        case nodes.Assign():
            yield _assigned(dialect, statement)
        case nodes.Declare():
            yield dialect.declare(statement.variable, None)
        case nodes.SetLane():
            yield f"{statement.variable.name}.{'xyzw'[statement.lane]} = {text(statement.value)};"
        case nodes.Store():
            yield _stored(dialect, statement)
        case nodes.Atomic() | nodes.Across() | nodes.Uniform():
            yield from _with_result(dialect, statement)
        case nodes.Barrier():
            yield dialect.special(statement, [])
        case nodes.Leave():
            yield f"{statement.how};"
        case nodes.If() | nodes.For() | nodes.While():
            yield from _nested(dialect, statement, depth)


def _stored(dialect: Dialect, statement: nodes.Store) -> str:
    """`a[i] = x;`, or `a[i] += x;` in memory that holds what is said: no packed halves, no atomics."""
    array, value, index = statement.array, statement.value, _index(dialect, statement.index)
    same = array.space != "buffer" and not array.atomic
    if same and isinstance(value, nodes.Binary) and _is_in_place(dialect, value):
        held = nodes.Load(array, statement.index, array.element)
        if value.left == held:
            right = expression(dialect, value.right)
            return f"{expression(dialect, held)} {value.operator}= {right};"
    return dialect.store(array, index, expression(dialect, value))


def _is_in_place(dialect: Dialect, value: nodes.Binary) -> bool:
    return value.operator in _IN_PLACE and (dialect.keeps_negated or negated(value) is None)


def _assigned(dialect: Dialect, statement: nodes.Assign) -> str:
    variable, value = statement.variable, statement.value
    if (
        isinstance(value, nodes.Binary)
        and value.left == nodes.Name(variable)
        and _is_in_place(dialect, value)
    ):
        return f"{variable.name} {value.operator}= {expression(dialect, value.right)};"
    return f"{variable.name} = {expression(dialect, value)};"


def _nested(dialect: Dialect, statement: nodes.If | nodes.For | nodes.While, depth: int) -> Iterator[str]:
    match statement:
        case nodes.If():
            yield from _if(dialect, statement, depth)
        case nodes.For():
            yield from _for(dialect, statement, depth)
        case nodes.While():
            again = statement.condition
            yield dialect.forever + " {" if again is None else f"while ({expression(dialect, again)}) {{"
            yield from lines(dialect, statement.body, depth + 1)
            yield "}"


def _with_result(dialect: Dialect, statement: nodes.Atomic | nodes.Across | nodes.Uniform) -> Iterator[str]:
    texts = [expression(dialect, statement.value)]
    if isinstance(statement, nodes.Atomic):
        texts.insert(0, _index(dialect, statement.index))
    elif isinstance(statement, nodes.Across) and statement.by is not None:
        texts.append(expression(dialect, statement.by))
    *before, value = dialect.special(statement, texts).splitlines()
    yield from before
    if statement.result is None:
        yield f"{value};"
    elif statement.declares:
        yield dialect.declare(statement.result, value)
    else:
        yield f"{statement.result.name} = {value};"


def _if(dialect: Dialect, statement: nodes.If, depth: int) -> Iterator[str]:
    margin = "    " * depth
    yield f"if ({expression(dialect, statement.condition)}) {{"
    yield from lines(dialect, statement.yes, depth + 1)
    if len(statement.no) == 1 and isinstance(statement.no[0], nodes.If):
        inner = list(_if(dialect, statement.no[0], depth))
        yield f"{margin}}} else {inner[0]}"
        yield from inner[1:]
        return
    if statement.no:
        yield f"{margin}}} else {{"
        yield from lines(dialect, statement.no, depth + 1)
    yield "}"


def _for(dialect: Dialect, statement: nodes.For, depth: int) -> Iterator[str]:
    name = statement.variable.name
    begin, end = expression(dialect, statement.begin), _bracketed(dialect, statement.end, 2)
    step = expression(dialect, statement.step)
    change = f"{name} -= {step.removeprefix('-')}" if statement.down else f"{name} += {step}"
    sign = ">" if statement.down else "<"
    yield f"for ({dialect.count(statement.variable, begin)}; {name} {sign} {end}; {change}) {{"
    yield from lines(dialect, statement.body, depth + 1)
    yield "}"
