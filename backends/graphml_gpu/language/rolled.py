"""Loops of a known length as loops of a length that drivers do not know, so that they do not unroll them.

Lavapipe (Mesa 22.3) unrolls loops of up to 32 turns before it compiles a kernel, and takes a millisecond for
each element that each copy reads. Knows a tree; nothing of texts and devices.
"""

from __future__ import annotations

from dataclasses import replace

from graphml_gpu.language import tree as nodes
from graphml_gpu.language.types import ValueType
from graphml_gpu.language.walk import all_expressions, all_statements

LEAST_TURNS = 5
"""Loops of fewer are left to be unrolled: the loops of products, of four turns, are worth it."""
_U32 = ValueType("u32")
_NOTHING = nodes.Binary(">>", nodes.Index("group_id", 0, _U32), nodes.LiteralValue(31, _U32), _U32)
"""Always 0: no grid has so many groups."""


def rolled(tree: nodes.Tree) -> nodes.Tree:
    """The same kernel; loops that read private arrays by their counters stay as they are.

    Such arrays are registers only where every index is a number in the end.
    """
    return replace(tree, body=_block(tree.body))


def _block(block: list[nodes.Statement]) -> list[nodes.Statement]:
    return [_statement(statement) for statement in block]


def _statement(statement: nodes.Statement) -> nodes.Statement:
    match statement:
        case nodes.If():
            return replace(statement, yes=_block(statement.yes), no=_block(statement.no))
        case nodes.While():
            return replace(statement, body=_block(statement.body))
        case nodes.For() if _turns(statement) >= LEAST_TURNS and not _indexes_registers(statement.body):
            end = nodes.Binary("+", statement.end, _NOTHING, _U32)
            return replace(statement, end=end, body=_block(statement.body))
        case nodes.For():
            return replace(statement, body=_block(statement.body))
    return statement


def _turns(loop: nodes.For) -> int:
    """How often it goes round; 0 where that is no number, or is counted otherwise than up in u32."""
    numbers = (loop.begin, loop.end, loop.step)
    if loop.down or any(
        not isinstance(number, nodes.LiteralValue) or number.type != _U32 for number in numbers
    ):
        return 0
    begin, end, step = (int(number.value) for number in numbers if isinstance(number, nodes.LiteralValue))
    return -(-(end - begin) // step)


def _indexes_registers(block: list[nodes.Statement]) -> bool:
    """Whether private arrays have an index that is no number."""
    places: list[tuple[str, nodes.Expression]] = [
        (statement.array.space, statement.index)
        for statement in all_statements(block)
        if isinstance(statement, nodes.Store | nodes.Atomic)
    ]
    places += [
        (load.array.space, load.index) for load in all_expressions(block) if isinstance(load, nodes.Load)
    ]
    return any(space == "private" and not isinstance(index, nodes.LiteralValue) for space, index in places)
