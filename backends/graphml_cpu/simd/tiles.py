"""Square tiles of memory transposed: rows that are anywhere become columns that are contiguous, and back.

Knows addresses and vectors; nothing of what is in them.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir

from graphml_cpu.frontend import types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.simd import build


def _transposed(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Each round interleaves row i with row i + n / 2, which rotates the bits of (row, column) by one."""
    half = len(rows) // 2
    low = [lane for i in range(half) for lane in (i, i + 2 * half)]
    high = [lane + half for lane in low]
    for _ in range(half.bit_length()):
        pairs = zip(rows[:half], rows[half:], strict=True)
        rows = [build.shuffle(builder, a, b, order) for a, b in pairs for order in (low, high)]
    return rows


def _row(builder: ir.IRBuilder, table: ir.Value, offset: ir.Value, row: int) -> ir.Value:
    place = build.pointer(builder, table, build.I64, 8 * row)
    return builder.add(builder.load(place, align=8), offset)


@operation
def load_columns(vector: Any, table: Any, offset: Any, destination: Any, stride: Any) -> Any:
    """`load_columns(F32x16, table, offset, destination, stride)`: 16 rows of 16 elements, transposed.

    Row r is at the address in word r of `table`, plus `offset`. Column c goes to destination + c * stride.
    """
    kind = vector.instance_type

    def emit(builder: ir.IRBuilder, *args: Any) -> None:
        _, table, offset, destination, stride = args
        rows = [
            build.load(builder, _row(builder, table, offset, row), kind.llvm_type)
            for row in range(kind.lanes)
        ]
        for column in _transposed(builder, rows):
            build.store(builder, column, destination)
            destination = builder.add(destination, stride)

    return types.none(vector, *[types.int64] * 4), emit


@operation
def store_columns(vector: Any, source: Any, stride: Any, table: Any, offset: Any) -> Any:
    """`store_columns(U8x16, source, stride, table, offset)`: the way back of `load_columns`."""
    kind = vector.instance_type

    def emit(builder: ir.IRBuilder, *args: Any) -> None:
        _, source, stride, table, offset = args
        columns = []
        for _ in range(kind.lanes):
            columns.append(build.load(builder, source, kind.llvm_type))
            source = builder.add(source, stride)
        for row, value in enumerate(_transposed(builder, columns)):
            build.store(builder, value, _row(builder, table, offset, row))

    return types.none(vector, *[types.int64] * 4), emit
