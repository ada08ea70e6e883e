"""Loops of a known length as loops of a length that drivers do not know, so that they do not unroll them.

Lavapipe (Mesa 22.3) unrolls loops of up to 32 turns before it compiles a kernel, and takes a millisecond for
each element that each copy reads. Knows a tree; nothing of texts and devices.
"""

from __future__ import annotations

from dataclasses import replace

from graphml_gpu.language.tree import (
    Atomic,
    Binary,
    Expression,
    For,
    If,
    Index,
    LiteralValue,
    Load,
    Statement,
    Store,
    Tree,
    While,
)
from graphml_gpu.language.types import ValueType
from graphml_gpu.language.walk import all_expressions, all_statements

LEAST_TURNS = 5
"""Loops of fewer are left to be unrolled: the loops of products, of four turns, are worth it."""
_U32 = ValueType("u32")
_NOTHING = Binary(">>", Index("group_id", 0, _U32), LiteralValue(31, _U32), _U32)
"""Always 0: no grid has so many groups."""


def rolled(tree: Tree) -> Tree:
    """The same kernel; loops that read private arrays by their counters stay as they are.

    Such arrays are registers only where every index is a number in the end.
    """
    return replace(tree, body=_block(tree.body))


def _block(block: list[Statement]) -> list[Statement]:
    return [_statement(statement) for statement in block]


def _statement(statement: Statement) -> Statement:
    match statement:
        case If():
            return replace(statement, yes=_block(statement.yes), no=_block(statement.no))
        case While():
            return replace(statement, body=_block(statement.body))
        case For() if _turns(statement) >= LEAST_TURNS and not _indexes_registers(statement.body):
            end = Binary("+", statement.end, _NOTHING, _U32)
            return replace(statement, end=end, body=_block(statement.body))
        case For():
            return replace(statement, body=_block(statement.body))
    return statement


def _turns(loop: For) -> int:
    """How often it goes round; 0 where that is no number, or is counted otherwise than up in u32."""
    numbers = (loop.begin, loop.end, loop.step)
    if loop.down or any(not isinstance(number, LiteralValue) or number.type != _U32 for number in numbers):
        return 0
    begin, end, step = (int(number.value) for number in numbers if isinstance(number, LiteralValue))
    return -(-(end - begin) // step)


def _indexes_registers(block: list[Statement]) -> bool:
    """Whether private arrays have an index that is no number."""
    places: list[tuple[str, Expression]] = [
        (statement.array.space, statement.index)
        for statement in all_statements(block)
        if isinstance(statement, Store | Atomic)
    ]
    places += [(load.array.space, load.index) for load in all_expressions(block) if isinstance(load, Load)]
    return any(space == "private" and not isinstance(index, LiteralValue) for space, index in places)
