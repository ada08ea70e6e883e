"""Panels of quantised weights times many packed rows: the register tile of the integer products.

A tile keeps the eight vectors of a panel's block (`integer_panels`) in registers while the tokens pass: each
brings four bytes at a time into all lanes. Knows panels and the packed layout; a format is its `Reader`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba import types

from graphml_cpu import packed, target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats import make_read
from graphml_cpu.kernels.formats._groups import Reader
from graphml_cpu.kernels.integer_groups import Operand, make_operand
from graphml_cpu.kernels.integer_panels import make_unpack, panel_block_bytes
from graphml_cpu.kernels.outputs import store_outputs
from graphml_cpu.kernels.register_tiles import (
    VECTOR_BYTES,
    emit_fma,
    make_token_addresses,
    make_zeros,
    store_tuple,
)
from graphml_cpu.simd import F32, I32, U8, WIDTH, build, load
from graphml_cpu.simd.bytes import emit_dot4, emit_dot4_signed, emit_fours
from graphml_cpu.simd.operation import operation
from graphml_cpu.simd.types import splat_value

# Tokens of a tile: eight weight vectors and eight sums fit in 32 registers; elsewhere there are 16.
TOKENS = 8 if target.current().registers == 32 else 4


def _vectors_at(
    builder: ir.IRBuilder, address: ir.Value, first: int, count: int, kind: Any
) -> list[ir.Value]:
    """IR: vectors `first` to `first + count` of a panel's block."""
    found = []
    for index in range(first, first + count):
        where = builder.add(address, build.I64(index * VECTOR_BYTES))
        found.append(builder.load(build.pointer(builder, where, kind.llvm_type), align=VECTOR_BYTES))
    return found


def _everywhere(builder: ir.IRBuilder, address: ir.Value, offset: int, kind: Any) -> ir.Value:
    """IR: the number at an address, in every lane."""
    where = builder.add(address, build.I64(offset))
    one = builder.load(build.pointer(builder, where, kind.llvm_element), align=4)
    return splat_value(builder, one, kind)


def _make_dots(builder: ir.IRBuilder, operand: Operand, weights: list[ir.Value]) -> Callable[..., ir.Value]:
    """IR of the float sums of the products of a token with the first or last of the eight weight vectors."""
    dot = emit_dot4_signed if operand.signed else emit_dot4

    def dots(x: ir.Value, seed: int, halves: tuple[int, ...]) -> ir.Value:
        found = build.constant(I32.llvm_type, 0)
        if operand.shift is not None:
            found = _everywhere(builder, x, packed.SEEDS + 4 * seed, I32)
            if operand.shift:
                found = builder.ashr(found, build.constant(I32.llvm_type, operand.shift))
        for half in halves:
            at = builder.add(x, build.I64(half * packed.HIGH_HALF))
            fours = emit_fours(builder, at, 4, WIDTH)
            for four, weight in zip(fours, weights[4 * half : 4 * half + 4], strict=True):
                found = dot(builder, found, weight, builder.bitcast(four, U8.llvm_type))
        return builder.sitofp(found, F32.llvm_type)

    return dots


def make_add_block(reader: Reader) -> Callable[..., Any]:
    """An operation `add_block(panel, xs, group, place, sums)`: one block of W rows times the tokens `xs`.

    `panel` is the panel's block, `xs` the addresses of the tokens' rows, `group` the offset in them of the
    packed group, `place` (0 to 3) the block in it; `sums` one F32 per token, lanes are weight rows.
    """
    operand = make_operand(reader)
    sums_at = ((), (packed.SUM,), (packed.LOW_SUM, packed.HIGH_SUM))[reader.minima]

    def add_block(typingctx: Any, panel: Any, xs: Any, group: Any, place: Any, sums: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            panel_at, xs_at, group_at, place_at, totals = args
            dots = _make_dots(builder, operand, _vectors_at(builder, panel_at, 0, 8, U8))
            scales = _vectors_at(builder, panel_at, 8, reader.scales, F32)
            minima = _vectors_at(builder, panel_at, 8 + reader.scales, reader.minima, F32)
            of_values, of_floats = builder.mul(place_at, build.I64(16)), builder.mul(place_at, build.I64(4))
            result = []
            for token in range(len(sums)):
                x = builder.add(builder.extract_value(xs_at, token), group_at)
                values, floats = builder.add(x, of_values), builder.add(x, of_floats)
                if len(scales) == 1:
                    products = builder.fmul(dots(values, 2, (0, 1)), scales[0])
                else:
                    products = builder.fmul(dots(values, 0, (0,)), scales[0])
                    products = emit_fma(builder, dots(values, 1, (1,)), scales[1], products)
                total = builder.extract_value(totals, token)
                total = emit_fma(builder, products, _everywhere(builder, floats, packed.SCALE, F32), total)
                for minimum, at in zip(minima, sums_at, strict=True):
                    total = emit_fma(builder, minimum, _everywhere(builder, floats, at, F32), total)
                result.append(total)
            return context.make_tuple(builder, signature.return_type, result)

        return sums(types.int64, xs, types.int64, types.int64, sums), codegen

    return operation(add_block)


def make_tile(reader: Reader, tokens: int) -> Callable[..., Any]:
    """An inline function: a panel times `tokens` rows (past the end the last one again), stored at `out`."""
    add_block = make_add_block(reader)
    token_addresses = make_token_addresses(tokens)
    zeros = make_zeros(tokens)
    block_bytes = panel_block_bytes(reader)

    @inline
    def tile(panel: int, blocks: int, x: int, x_stride: int, last: int, out: int) -> None:
        xs = token_addresses(x, x_stride, last)
        sums = zeros()
        for block in range(blocks):
            group = (block >> 2) * packed.GROUP_BYTES
            sums = add_block(panel + block * block_bytes, xs, group, block & 3, sums)
        store_tuple(out, sums)

    return tile


def make_integer_tiles(kind: str) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, w, x, ..., rows, scratch)`.

    Panels begin to end (of W weight rows each) of format `kind` times all packed rows.
    """
    reader = make_read(kind)
    unpack = make_unpack(reader)
    few = TOKENS // 2
    many_tokens, few_tokens = make_tile(reader, TOKENS), make_tile(reader, few)
    stored_bytes, stored_elements = reader.block_bytes, reader.block_elements
    panel_group = 4 * panel_block_bytes(reader)

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
        row_bytes = k // stored_elements * stored_bytes
        panel_bytes = (k + packed.GROUP - 1) // packed.GROUP * panel_group
        out = scratch + packed.PANELS * panel_bytes
        buffer = out + TOKENS * VECTOR_BYTES
        for first in range(begin, end, packed.PANELS):
            panels = min(packed.PANELS, end - first)
            for panel in range(panels):
                row = (first + panel) * WIDTH
                last = (n - 1 - row) * row_bytes
                unpack(w + row * row_bytes, row_bytes, last, k, scratch + panel * panel_bytes, buffer)
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
