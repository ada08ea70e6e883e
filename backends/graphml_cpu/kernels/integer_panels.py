"""Panels of quantised weights: W rows side by side, in the order that the tiles of `integer_tiles` want.

W weight rows (the lanes of a vector) make a panel: for each block of 32 columns eight vectors, vector c
holding weights 4c to 4c+3 of every row, then the rows' scales (one vector, or one for weights 0 to 15 and
one for 16 to 31), then their minima (none, one or two vectors). Every format's `Reader` gives the rows; each
row's unit is put down as it is read, and what lies side by side is then turned around.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba import types

from graphml_cpu import packed
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import Reader
from graphml_cpu.kernels.integer_groups import make_operand
from graphml_cpu.kernels.register_tiles import VECTOR_BYTES, join
from graphml_cpu.simd import U8, WIDTH, build, shuffle_by, store
from graphml_cpu.simd.operation import operation

# What a row of a group takes before it is turned around: 128 values, and four floats for each of two vectors
# of scales and two of minima.
_ROW_GROUP_BYTES = 192
_SCALES = 128
_MINIMA = 160
_one_of_four = shuffle_by((0, 4, 8, 12))


def panel_block_bytes(reader: Reader) -> int:
    """Bytes of one block of 32 columns of a panel."""
    return (8 + reader.scales + reader.minima) * VECTOR_BYTES


def _make_load_transposed(row_bytes: int) -> Callable[..., Any]:
    """An operation `f(at)`: 16 bytes of each of W rows, `row_bytes` apart, as four U8 vectors.

    Lane r of vector c (lanes of four bytes) holds bytes 4c to 4c+3 of row r.
    """

    def load_transposed(typingctx: Any, at: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            four = ir.VectorType(build.I32, 4)
            rows = []
            for row in range(WIDTH):
                address = builder.add(args[0], build.I64(row * row_bytes))
                rows.append(builder.load(build.pointer(builder, address, four), align=1))
            # Quarter q of interleaved[i] is row 4q + i: what is left is to transpose 4 x 4 in each quarter.
            interleaved = [join(builder, rows[i::4]) for i in range(4)]
            quarters = range(0, WIDTH, 4)

            def pairs(a: ir.Value, b: ir.Value, start: int) -> ir.Value:
                indices = []
                for q in quarters:
                    indices += [q + start, WIDTH + q + start, q + start + 1, WIDTH + q + start + 1]
                return build.shuffle(builder, a, b, indices)

            result = []
            for start in (0, 2):
                left = pairs(interleaved[0], interleaved[1], start)
                right = pairs(interleaved[2], interleaved[3], start)
                for half in (0, 2):
                    indices = []
                    for q in quarters:
                        indices += [q + half, q + half + 1, WIDTH + q + half, WIDTH + q + half + 1]
                    result.append(builder.bitcast(build.shuffle(builder, left, right, indices), U8.llvm_type))
            return context.make_tuple(builder, signature.return_type, result)

        return types.UniTuple(U8, 4)(types.int64), codegen

    return operation(load_transposed)


def _make_put(reader: Reader) -> Callable[..., Any]:
    """An inline function `put(to, group)`: one row's group to the address `to`."""
    prepare = make_operand(reader, for_panel=True).prepare

    @inline
    def one_scale(to: int, group: Any) -> None:
        store(to + _SCALES, _one_of_four(group[1][0]))

    @inline
    def two_scales(to: int, group: Any) -> None:
        store(to + _SCALES, _one_of_four(group[1][0]))
        store(to + _SCALES + 16, _one_of_four(group[1][1]))

    @inline
    def no_minima(to: int, group: Any) -> None:
        pass

    @inline
    def minima(to: int, group: Any) -> None:
        store(to + _MINIMA, group[2])

    put_scales = one_scale if reader.scales == 1 else two_scales
    put_minima = minima if reader.minima else no_minima

    @inline
    def put(to: int, group: Any) -> None:
        store(to, prepare(group[0][0]))
        store(to + 64, prepare(group[0][1]))
        put_scales(to, group)
        put_minima(to, group)

    return put


def _make_turn(reader: Reader, row_bytes: int) -> Callable[..., Any]:
    """An inline function `turn(source, panel)`: a group of W rows, `row_bytes` apart -> four panel blocks."""
    load_transposed = _make_load_transposed(row_bytes)
    block_bytes = panel_block_bytes(reader)
    minima_at = (8 + reader.scales) * VECTOR_BYTES
    scales, minima = reader.scales, reader.minima

    @inline
    def turn(source: int, panel: int) -> None:
        for block in range(4):
            to = panel + block * block_bytes
            for half in range(2):
                a, b, c, d = load_transposed(source + half * 64 + block * 16)
                store(to + half * 4 * VECTOR_BYTES, a)
                store(to + half * 4 * VECTOR_BYTES + VECTOR_BYTES, b)
                store(to + half * 4 * VECTOR_BYTES + 2 * VECTOR_BYTES, c)
                store(to + half * 4 * VECTOR_BYTES + 3 * VECTOR_BYTES, d)
        for index in range(scales):
            turn_floats(source + _SCALES + 16 * index, panel + (8 + index) * VECTOR_BYTES)
        for index in range(minima):
            turn_floats(source + _MINIMA + 16 * index, panel + minima_at + index * VECTOR_BYTES)

    @inline
    def turn_floats(source: int, to: int) -> None:
        a, b, c, d = load_transposed(source)
        store(to, a)
        store(to + block_bytes, b)
        store(to + 2 * block_bytes, c)
        store(to + 3 * block_bytes, d)

    return turn


def make_unpack(reader: Reader) -> Callable[..., Any]:
    """An inline function `unpack(w, row_bytes, last, k, panel, buffer)`: W weight rows from w on -> panel.

    Rows further than `last` bytes behind the first are replaced by the row there. The panel gets whole
    groups; what is behind k is of no meaning. `buffer`: W * `packed.UNIT_ROW_BYTES` bytes.
    """
    put, turn = _make_put(reader), _make_turn(reader, packed.UNIT_ROW_BYTES)
    read, read_rest = reader.read, reader.read_rest
    size, elements, block = reader.unit_bytes, reader.groups * packed.GROUP, reader.block_elements
    panel_group = 4 * panel_block_bytes(reader)
    second = _ROW_GROUP_BYTES if reader.groups == 2 else 0

    @inline
    def put_one(to: int, groups: Any) -> None:
        put(to, groups[0])

    @inline
    def put_two(to: int, groups: Any) -> None:
        put(to, groups[0])
        put(to + second, groups[1])

    put_unit = put_two if second else put_one

    @inline
    def units(w: int, row_bytes: int, last: int, k: int, panel: int, buffer: int) -> None:
        for unit in range(k // elements):
            for row in range(WIDTH):
                at = w + min(row * row_bytes, last) + unit * size
                put_unit(buffer + row * packed.UNIT_ROW_BYTES, read(at))
            turn(buffer, panel)
            panel += panel_group
            if second:
                turn(buffer + second, panel)
                panel += panel_group

    @inline
    def units_and_rest(w: int, row_bytes: int, last: int, k: int, panel: int, buffer: int) -> None:
        units(w, row_bytes, last, k, panel, buffer)
        whole = k // elements
        left = (k - whole * elements) // block
        if left > 0:
            for row in range(WIDTH):
                at = w + min(row * row_bytes, last) + whole * size
                put_unit(buffer + row * packed.UNIT_ROW_BYTES, read_rest(at, left))
            turn(buffer, panel + whole * panel_group)

    return units if read_rest is None else units_and_rest
