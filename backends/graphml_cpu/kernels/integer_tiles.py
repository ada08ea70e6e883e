"""Panels of Q4_0, Q4_1 and Q8_0 weights times many packed rows: the register tile of the integer products.

W weight rows (the lanes of a vector) are unpacked side by side into a panel: for each block of 32 columns
eight vectors, vector c holding bytes 4c to 4c+3 of every row, then the rows' scales and minima. A tile keeps
those eight vectors in registers while the tokens pass: each brings four bytes at a time into all lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba import types

from graphml_cpu import packed, target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.integer_blocks import FORMATS, BlockFormat
from graphml_cpu.kernels.outputs import store_outputs
from graphml_cpu.kernels.register_tiles import (
    VECTOR_BYTES,
    emit_fma,
    join,
    make_token_addresses,
    make_zeros,
    row_addresses,
    store_tuple,
)
from graphml_cpu.simd import F32, I32, U8, WIDTH, build, load, store
from graphml_cpu.simd.bytes import emit_dot4, emit_dot4_signed, emit_fours
from graphml_cpu.simd.operation import operation
from graphml_cpu.simd.types import splat_value

PANEL_BLOCK_BYTES = packed.panel_block_bytes()
SCALES = 8 * VECTOR_BYTES
MINIMA = 9 * VECTOR_BYTES
# Tokens of a tile: eight weight vectors and eight sums fit in 32 registers; elsewhere there are 16.
TOKENS = 8 if target.current().registers == 32 else 4


@operation
def load_transposed(typingctx: Any, at: Any, row_bytes: Any, last: Any) -> Any:
    """`load_transposed(at, row_bytes, last)`: 16 bytes of each of W rows, as four U8 vectors.

    Lane r of vector c (lanes of four bytes) holds bytes 4c to 4c+3 of row r. Rows further than `last` bytes
    behind the first are replaced by the row there.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        four = ir.VectorType(build.I32, 4)
        rows = [
            builder.load(build.pointer(builder, address, four), align=1)
            for address in row_addresses(builder, *args)
        ]
        # Quarter q of interleaved[i] is row 4q + i: what is left is to transpose 4 x 4 within each quarter.
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

    return types.UniTuple(U8, 4)(types.int64, types.int64, types.int64), codegen


@operation
def gather_row_halves(typingctx: Any, at: Any, row_bytes: Any, last: Any) -> Any:
    """One IEEE half of each of W rows as F32; rows as in `load_transposed`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        narrow = ir.VectorType(ir.IntType(16), WIDTH)
        bits = ir.Constant(narrow, ir.Undefined)
        for lane, address in enumerate(row_addresses(builder, *args)):
            half = builder.load(build.pointer(builder, address, ir.IntType(16)), align=1)
            bits = builder.insert_element(bits, half, build.I32(lane))
        if target.current().has_f16c:
            halves = builder.bitcast(bits, ir.VectorType(ir.HalfType(), WIDTH))
            return builder.fpext(halves, F32.llvm_type)
        return build.half_to_single(builder, builder.zext(bits, ir.VectorType(build.I32, WIDTH)))

    return F32(types.int64, types.int64, types.int64), codegen


def make_add_block(format: BlockFormat) -> Callable[..., Any]:
    """An operation `add_block(panel, xs, values, scale, sums)`: one block of W rows times the tokens `xs`.

    `panel` is the panel's block, `xs` the addresses of the tokens' rows, `values` and `scale` the offsets in
    them of the block's values and (less `packed.SCALE`) of its scale; `sums` one F32 per token, lanes are
    weight rows.
    """
    seed = {8: packed.SEED_8, 128: packed.SEED_128}.get(format.offset)
    dot = emit_dot4_signed if format.bits == 8 and not format.offset else emit_dot4

    def add_block(typingctx: Any, panel: Any, xs: Any, values: Any, scale: Any, sums: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            panel_at, xs_at, values_at, scale_at, totals = args

            def vector_at(offset: int, kind: Any) -> ir.Value:
                return builder.load(
                    build.pointer(builder, builder.add(panel_at, build.I64(offset)), kind), align=VECTOR_BYTES
                )

            def everywhere(address: ir.Value, kind: Any) -> ir.Value:
                one = builder.load(build.pointer(builder, address, kind.llvm_element), align=4)
                return splat_value(builder, one, kind)

            weights = [vector_at(c * VECTOR_BYTES, U8.llvm_type) for c in range(8)]
            scales = vector_at(SCALES, F32.llvm_type)
            minima = vector_at(MINIMA, F32.llvm_type) if format.minimum else None
            result = []
            for token in range(len(sums)):
                x = builder.extract_value(xs_at, token)
                values_of, scale_of = builder.add(x, values_at), builder.add(x, scale_at)
                found = build.constant(I32.llvm_type, 0)
                if seed is not None:
                    found = everywhere(builder.add(scale_of, build.I64(seed)), I32)
                high = builder.add(values_of, build.I64(packed.HIGH_HALF))
                fours = emit_fours(builder, values_of, 4, WIDTH) + emit_fours(builder, high, 4, WIDTH)
                for four, weight in zip(fours, weights, strict=True):
                    found = dot(builder, found, weight, builder.bitcast(four, U8.llvm_type))
                factor = builder.fmul(scales, everywhere(builder.add(scale_of, build.I64(packed.SCALE)), F32))
                total = emit_fma(
                    builder,
                    builder.sitofp(found, F32.llvm_type),
                    factor,
                    builder.extract_value(totals, token),
                )
                if minima is not None:
                    sum_of = everywhere(builder.add(scale_of, build.I64(packed.SCALED_SUM)), F32)
                    total = emit_fma(builder, minima, sum_of, total)
                result.append(total)
            return context.make_tuple(builder, signature.return_type, result)

        return sums(types.int64, xs, types.int64, types.int64, sums), codegen

    return operation(add_block)


def _make_tile(format: BlockFormat, tokens: int) -> Callable[..., Any]:
    """An inline function: a panel times `tokens` rows (past the end the last one again), stored at `out`."""
    add_block = make_add_block(format)
    token_addresses = make_token_addresses(tokens)
    zeros = make_zeros(tokens)

    @inline
    def tile(panel: int, blocks: int, x: int, x_stride: int, last: int, out: int) -> None:
        xs = token_addresses(x, x_stride, last)
        sums = zeros()
        for block in range(blocks):
            group = (block >> 2) * packed.GROUP_BYTES
            place = block & 3
            at = panel + block * PANEL_BLOCK_BYTES
            sums = add_block(at, xs, group + place * 16, group + place * 4, sums)
        store_tuple(out, sums)

    return tile


def make_unpack(format: BlockFormat) -> Callable[..., Any]:
    """An inline function `unpack(w, row_bytes, last, blocks, panel)`: W weight rows from w on -> panel."""
    size, values, minimum = format.block_bytes, format.values, format.minimum
    four_bits, biased = format.bits == 4, format.offset == 128

    @inline
    def store_four(to: int, a: Any) -> None:
        store(to, a[0])
        store(to + VECTOR_BYTES, a[1])
        store(to + 2 * VECTOR_BYTES, a[2])
        store(to + 3 * VECTOR_BYTES, a[3])

    @inline
    def unpack_nibbles(at: int, row_bytes: int, last: int, to: int) -> None:
        a = load_transposed(at, row_bytes, last)
        store_four(to, (a[0] & 15, a[1] & 15, a[2] & 15, a[3] & 15))
        store_four(to + 4 * VECTOR_BYTES, (a[0] >> 4, a[1] >> 4, a[2] >> 4, a[3] >> 4))

    @inline
    def half_of_bytes(at: int, row_bytes: int, last: int, to: int) -> None:
        a = load_transposed(at, row_bytes, last)
        if biased:
            store_four(to, (a[0] ^ 128, a[1] ^ 128, a[2] ^ 128, a[3] ^ 128))
        else:
            store_four(to, a)

    @inline
    def unpack_bytes(at: int, row_bytes: int, last: int, to: int) -> None:
        half_of_bytes(at, row_bytes, last, to)
        half_of_bytes(at + 16, row_bytes, last, to + 4 * VECTOR_BYTES)

    unpack_values = unpack_nibbles if four_bits else unpack_bytes

    @inline
    def unpack(w: int, row_bytes: int, last: int, blocks: int, panel: int) -> None:
        for block in range(blocks):
            at = w + block * size
            to = panel + block * PANEL_BLOCK_BYTES
            unpack_values(at + values, row_bytes, last, to)
            store(to + SCALES, gather_row_halves(at, row_bytes, last))
            if minimum != 0:
                store(to + MINIMA, gather_row_halves(at + minimum, row_bytes, last))

    return unpack


def make_integer_tiles(kind: str) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, w, x, ..., rows, scratch)`.

    Panels begin to end (of W weight rows each) of format `kind` times all packed rows.
    """
    format = FORMATS[kind]
    size = format.block_bytes
    unpack = make_unpack(format)
    few = TOKENS // 2
    many_tokens, few_tokens = _make_tile(format, TOKENS), _make_tile(format, few)

    @inline
    def multiply(
        begin: int,
        end: int,
        w: int,
        x: int,
        y: int,
        residual: int,
        bias: int,
        n: int,
        k: int,
        x_stride: int,
        y_stride: int,
        rows: int,
        scratch: int,
    ) -> None:
        blocks = k // packed.BLOCK
        row_bytes = blocks * size
        panel_bytes = blocks * PANEL_BLOCK_BYTES
        out = scratch + packed.PANELS * panel_bytes
        for first in range(begin, end, packed.PANELS):
            panels = min(packed.PANELS, end - first)
            for panel in range(panels):
                row = (first + panel) * WIDTH
                last = (n - 1 - row) * row_bytes
                unpack(w + row * row_bytes, row_bytes, last, blocks, scratch + panel * panel_bytes)
            token = 0
            while token < rows:
                at = x + token * x_stride
                left = rows - token
                taken = few if left <= few else TOKENS
                for panel in range(panels):
                    column = (first + panel) * WIDTH
                    source = scratch + panel * panel_bytes
                    if taken == few:
                        few_tokens(source, blocks, at, x_stride, (left - 1) * x_stride, out)
                    else:
                        many_tokens(source, blocks, at, x_stride, (left - 1) * x_stride, out)
                    for i in range(min(taken, left)):
                        values = load(F32, out + i * VECTOR_BYTES)
                        to = (token + i) * y_stride
                        store_outputs(values, n - column, y, residual, bias, column, to)
                token += taken

    return multiply
