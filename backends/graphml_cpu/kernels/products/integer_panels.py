"""Panels of quantised weights: W rows side by side, in the order that the tiles of `integer_tiles` want.

W weight rows (the lanes of a vector) make a panel: for each block of 32 columns eight vectors, vector c
holding weights 4c to 4c+3 of every row, then the rows' scales (one vector, or one for weights 0 to 15 and
one for 16 to 31), then their minima (none, one or two vectors). Every format's `CpuFormatReader` gives the
rows; each row's unit is put down as it is read, and what lies side by side is then transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir

from graphml_cpu import packed
from graphml_cpu.frontend import inline, types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.kernels.formats._groups import CpuFormatReader
from graphml_cpu.kernels.products.integer_groups import make_operand
from graphml_cpu.kernels.products.register_tiles import VECTOR_BYTES, join
from graphml_cpu.simd import U8, WIDTH, build, store

# What a row of a group takes before it is transposed: 128 values, and four floats for each of two vectors
# of scales and two of minima.
ROW_GROUP_BYTES = 192
SCALES = 128
MINIMA = 160


def panel_block_bytes(reader: CpuFormatReader) -> int:
    """Bytes of one block of 32 columns of a panel."""
    return (8 + reader.scales + reader.minima) * VECTOR_BYTES


def _in_quarters(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """IR: 4 x 4 numbers are transposed within every 16 bytes of four vectors."""
    width = rows[0].type.count

    def pairs(a: ir.Value, b: ir.Value, first: int) -> ir.Value:
        """Two neighbours of a, then two of b, in turns by one (first 0 or 2)."""
        lanes = [
            (q + first, width + q + first, q + first + 1, width + q + first + 1) for q in range(0, width, 4)
        ]
        return build.shuffle(builder, a, b, [lane for four in lanes for lane in four])

    def doubles(a: ir.Value, b: ir.Value, first: int) -> ir.Value:
        lanes = [
            (q + first, q + first + 1, width + q + first, width + q + first + 1) for q in range(0, width, 4)
        ]
        return build.shuffle(builder, a, b, [lane for four in lanes for lane in four])

    quarters = []
    for first in (0, 2):
        left, right = pairs(rows[0], rows[1], first), pairs(rows[2], rows[3], first)
        quarters += [doubles(left, right, 0), doubles(left, right, 2)]
    return quarters


def _quarters(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """IR: as many vectors as they have quarters of 16 bytes; quarter q of vector r becomes quarter r of q."""
    width = rows[0].type.count
    if len(rows) == 1:
        return rows
    if len(rows) == 2:
        a, b = rows
        lanes = [[*range(first, first + 4), *range(width + first, width + first + 4)] for first in (0, 4)]
        return [build.shuffle(builder, a, b, order) for order in lanes]

    def pick(a: ir.Value, b: ir.Value, first: int) -> ir.Value:
        """Quarters first and first + 2 of a, then of b."""
        starts = [4 * first, 4 * first + 8, width + 4 * first, width + 4 * first + 8]
        return build.shuffle(builder, a, b, [start + lane for start in starts for lane in range(4)])

    even = pick(rows[0], rows[1], 0), pick(rows[2], rows[3], 0)
    odd = pick(rows[0], rows[1], 1), pick(rows[2], rows[3], 1)
    return [pick(a, b, first) for first in (0, 1) for a, b in (even, odd)]


def _make_transposed_vectors(row_bytes: int, count: int) -> Callable[..., Any]:
    """An operation `f(at)`: `count` (W or 4) times 4 bytes of each of W rows, `row_bytes` apart.

    Gives `count` U8 vectors: lane r of vector c (lanes of four bytes) holds bytes 4c to 4c+3 of row r.
    """

    def transposed(at: Any) -> Any:
        def emit(builder: ir.IRBuilder, *args: Any) -> Any:
            kind = ir.VectorType(build.I32, count)
            rows = []
            for row in range(WIDTH):
                address = builder.add(args[0], build.I64(row * row_bytes))
                rows.append(build.load(builder, address, kind))
            if count == WIDTH:
                fours = [_in_quarters(builder, rows[first : first + 4]) for first in range(0, WIDTH, 4)]
                columns = [_quarters(builder, [four[c] for four in fours]) for c in range(4)]
                result = [columns[c % 4][c // 4] for c in range(WIDTH)]
            else:
                # Quarter q of the joined rows i, 4 + i, ... is row 4q + i.
                result = _in_quarters(builder, [join(builder, rows[i::4]) for i in range(4)])
            result = [builder.bitcast(vector, U8.llvm_type) for vector in result]
            return tuple(result)

        return types.UniTuple(U8, count)(types.int64), emit

    return operation(transposed)


@operation
def _store_blocks(to: Any, distance: Any, vectors: Any) -> Any:
    """Store the vectors of a tuple in runs of four, the runs `distance` bytes apart."""

    def emit(builder: ir.IRBuilder, *args: Any) -> None:
        for index in range(len(vectors)):
            run = builder.add(args[0], builder.mul(args[1], build.I64(index // 4)))
            at = builder.add(run, build.I64(index % 4 * VECTOR_BYTES))
            value = builder.extract_value(args[2], index)
            builder.store(value, build.pointer(builder, at, value.type), align=4)

    return types.none(types.int64, types.int64, vectors), emit


def _make_put(reader: CpuFormatReader) -> Callable[..., Any]:
    """An inline function `put(to, group)`: one row's group to the address `to`."""
    prepare = make_operand(reader, for_panel=True).prepare

    @inline
    def one_scale(to: int, group: Any) -> None:
        store(to + SCALES, group[1][0])

    @inline
    def two_scales(to: int, group: Any) -> None:
        store(to + SCALES, group[1][0])
        store(to + SCALES + 16, group[1][1])

    @inline
    def no_minima(to: int, group: Any) -> None:
        pass

    @inline
    def minima(to: int, group: Any) -> None:
        store(to + MINIMA, group[2])

    put_scales = one_scale if reader.scales == 1 else two_scales
    put_minima = minima if reader.minima else no_minima

    @inline
    def put(to: int, group: Any) -> None:
        store(to, prepare(group[0][0]))
        store(to + 64, prepare(group[0][1]))
        put_scales(to, group)
        put_minima(to, group)

    return put


def make_put_unit(reader: CpuFormatReader) -> Callable[..., Any]:
    """An inline function `put_unit(to, groups)`: one row's unit to `to`, at most UNIT_ROW_BYTES."""
    put = _make_put(reader)

    @inline
    def put_one(to: int, groups: Any) -> None:
        put(to, groups[0])

    @inline
    def put_two(to: int, groups: Any) -> None:
        put(to, groups[0])
        put(to + ROW_GROUP_BYTES, groups[1])

    return put_two if reader.groups == 2 else put_one


def _make_transpose(reader: CpuFormatReader, row_bytes: int) -> Callable[..., Any]:
    """An inline function `transpose(source, panel, distance)`: W rows -> four panel blocks.

    Rows are `row_bytes` apart, blocks `distance`.
    """
    transposed = _make_transposed_vectors(row_bytes, WIDTH)
    transposed_four = _make_transposed_vectors(row_bytes, 4)
    minima_at = (8 + reader.scales) * VECTOR_BYTES
    scales, minima = reader.scales, reader.minima
    blocks = WIDTH // 4

    @inline
    def transpose(source: int, panel: int, distance: int) -> None:
        for half in range(2):
            for first in range(0, 4, blocks):
                to = panel + first * distance + half * 4 * VECTOR_BYTES
                _store_blocks(to, distance, transposed(source + half * 64 + first * 16))
        for index in range(scales):
            turn_floats(source + SCALES + 16 * index, panel + (8 + index) * VECTOR_BYTES, distance)
        for index in range(minima):
            turn_floats(source + MINIMA + 16 * index, panel + minima_at + index * VECTOR_BYTES, distance)

    @inline
    def turn_floats(source: int, to: int, distance: int) -> None:
        a, b, c, d = transposed_four(source)
        store(to, a)
        store(to + distance, b)
        store(to + 2 * distance, c)
        store(to + 3 * distance, d)

    return transpose


def make_unpack(reader: CpuFormatReader, places: int = 1) -> Callable[..., Any]:
    """An inline function `unpack(w, row_bytes, last, k, panel, buffer)`: W weight rows from w on -> panel.

    Rows further than `last` bytes behind the first are replaced by the row there. The panel gets whole
    groups; with 4 `places` the first blocks of all groups, then the second, third and fourth. What is behind
    k is of no meaning. `buffer`: W * `packed.UNIT_ROW_BYTES` bytes.
    """
    put_unit, transpose = make_put_unit(reader), _make_transpose(reader, packed.UNIT_ROW_BYTES)
    read, read_rest = reader.read, reader.read_rest
    size, elements, block = reader.unit_bytes, reader.groups * packed.GROUP, reader.block_elements
    block_bytes = panel_block_bytes(reader)
    group_step = block_bytes * (4 // places)
    second = ROW_GROUP_BYTES if reader.groups == 2 else 0

    @inline
    def distance_of(k: int) -> int:
        if places == 1:
            return block_bytes
        return (k + packed.GROUP - 1) // packed.GROUP * block_bytes

    @inline
    def units(w: int, row_bytes: int, last: int, k: int, panel: int, buffer: int) -> None:
        distance = distance_of(k)
        for unit in range(k // elements):
            for row in range(WIDTH):
                at = w + min(row * row_bytes, last) + unit * size
                put_unit(buffer + row * packed.UNIT_ROW_BYTES, read(at))
            transpose(buffer, panel, distance)
            panel += group_step
            if second:
                transpose(buffer + second, panel, distance)
                panel += group_step

    @inline
    def units_and_rest(w: int, row_bytes: int, last: int, k: int, panel: int, buffer: int) -> None:
        units(w, row_bytes, last, k, panel, buffer)
        whole = k // elements
        left = (k - whole * elements) // block
        if left > 0:
            for row in range(WIDTH):
                at = w + min(row * row_bytes, last) + whole * size
                put_unit(buffer + row * packed.UNIT_ROW_BYTES, read_rest(at, left))
            transpose(buffer, panel + whole * group_step, distance_of(k))

    return units if read_rest is None else units_and_rest
