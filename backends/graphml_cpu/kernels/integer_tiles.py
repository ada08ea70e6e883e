"""Panels of quantised weights times many packed rows: the register tile of the integer products.

A tile keeps the eight vectors of a panel's block (`integer_panels`) in registers while the tokens pass: each
brings four bytes at a time into all lanes. Knows panels and the packed layout; a format is its `Reader`.
"""

from __future__ import annotations

import itertools
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
    make_load_tuple,
    make_token_addresses,
    store_tuple,
)
from graphml_cpu.simd import F32, I32, U8, WIDTH, build, load, store, zero
from graphml_cpu.simd.bytes import emit_dot4, emit_dot4_signed, emit_fours
from graphml_cpu.simd.operation import operation
from graphml_cpu.simd.types import splat_value

# Panels and tokens of a tile: an integer sum and a total for each pair of them stay in registers, and what is
# loaded serves as many products as the other side has.
PANELS = 2
TOKENS = 4 if target.current().registers == 32 else 2


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


def _dots(
    builder: ir.IRBuilder,
    operand: Operand,
    panels: list[list[ir.Value]],
    xs: list[ir.Value],
    halves: tuple[int, ...],
) -> dict[tuple[int, int], ir.Value]:
    """IR of (panel, token) -> the float sums of products of the token's values with these halves of a block.

    The sums take turns, so that each may wait for its last term while the others go on.
    """
    dot = emit_dot4_signed if operand.signed else emit_dot4
    pairs = [(panel, token) for token in range(len(xs)) for panel in range(len(panels))]
    seeds = [build.constant(I32.llvm_type, 0)] * len(xs)
    if operand.shift is not None:
        seed = packed.SEEDS + 4 * (2 if len(halves) == 2 else halves[0])
        seeds = [_everywhere(builder, x, seed, I32) for x in xs]
        if operand.shift:
            seeds = [builder.ashr(one, build.constant(I32.llvm_type, operand.shift)) for one in seeds]
    found = {(panel, token): seeds[token] for panel, token in pairs}
    for half in halves:
        fours = [
            emit_fours(builder, builder.add(x, build.I64(half * packed.HIGH_HALF)), 4, WIDTH) for x in xs
        ]
        for i in range(4):
            for panel, token in pairs:
                four = builder.bitcast(fours[token][i], U8.llvm_type)
                found[panel, token] = dot(builder, found[panel, token], panels[panel][4 * half + i], four)
    return {pair: builder.sitofp(one, F32.llvm_type) for pair, one in found.items()}


def make_add_block(reader: Reader) -> Callable[..., Any]:
    """An operation `add_block(panel, next, xs, group, place, sums)`: a block of panels times the tokens `xs`.

    `panel` is the first panel's block, the others' are `next` bytes behind one another; `xs` are the
    addresses of the tokens' rows, `group` the offset in them of the packed group, `place` (0 to 3) the block
    in it. `sums` has one F32 for each panel of each token; lanes are weight rows.
    """
    operand = make_operand(reader, for_panel=True)
    sums_at = ((), (packed.SUM,), (packed.LOW_SUM, packed.HIGH_SUM))[reader.minima]
    halves_of = ((0, 1),) if reader.scales == 1 else ((0,), (1,))

    def add_block(typingctx: Any, panel: Any, next: Any, xs: Any, group: Any, place: Any, sums: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
            panel_at, next_at, xs_at, group_at, place_at, totals = args
            tokens, panels = range(len(xs)), range(PANELS)
            at = [builder.add(panel_at, builder.mul(next_at, build.I64(i))) for i in panels]
            weights = [_vectors_at(builder, one, 0, 8, U8) for one in at]
            scales = [_vectors_at(builder, one, 8, reader.scales, F32) for one in at]
            minima = [_vectors_at(builder, one, 8 + reader.scales, reader.minima, F32) for one in at]
            of_values, of_floats = builder.mul(place_at, build.I64(16)), builder.mul(place_at, build.I64(4))
            groups = [builder.add(builder.extract_value(xs_at, token), group_at) for token in tokens]
            values = [builder.add(x, of_values) for x in groups]
            floats = [builder.add(x, of_floats) for x in groups]
            result = [builder.extract_value(totals, i) for i in range(len(sums))]
            # Minima first: their registers are free again when the sums need them.
            for index, where in enumerate(sums_at):
                for token, i in itertools.product(tokens, panels):
                    number, place_of = _everywhere(builder, floats[token], where, F32), token * PANELS + i
                    result[place_of] = build.multiply_add(builder, minima[i][index], number, result[place_of])
            for index, halves in enumerate(halves_of):
                for (i, token), products in _dots(builder, operand, weights, values, halves).items():
                    scale = _everywhere(builder, floats[token], packed.SCALE, F32)
                    factor, place_of = builder.fmul(scales[i][index], scale), token * PANELS + i
                    result[place_of] = build.multiply_add(builder, products, factor, result[place_of])
            return context.make_tuple(builder, signature.return_type, result)

        return sums(types.int64, types.int64, xs, types.int64, types.int64, sums), codegen

    return operation(add_block)


def make_tile(reader: Reader, tokens: int, token_addresses: Any) -> Callable[..., Any]:
    """An inline function: columns of panels times `tokens` rows (past the end the last again).

    `blocks` blocks of 32 columns, which begin with the group at byte `start` of the packed rows. What is
    found is added to what is at `out`, a vector for each panel of each token. token_addresses: how the rows
    are found from x, x_stride and last, one of `register_tiles`.
    """
    add_block = make_add_block(reader)
    load_sums = make_load_tuple(tokens * PANELS)
    block_bytes = panel_block_bytes(reader)

    @inline
    def tile(
        panel: int, next: int, blocks: int, start: int, x: int, x_stride: int, last: int, out: int
    ) -> None:
        xs = token_addresses(x, x_stride, last)
        sums = load_sums(out)
        for block in range(blocks):
            group = start + (block >> 2) * packed.GROUP_BYTES
            sums = add_block(panel + block * block_bytes, next, xs, group, block & 3, sums)
        store_tuple(out, sums)

    return tile


def make_panel_products(reader: Reader, in_tile: int, token_addresses: Any) -> Callable[..., Any]:
    """An inline function `products(first, w, n, k, row_bytes, x, x_stride, tokens, scratch)`.

    Weight rows `first` to `first` + PANELS * W of w [n, k] (past the end the last again) times up to
    `packed.TOKENS` rows, found from x and x_stride by `token_addresses`, `in_tile` of them at once. Gives the
    address of the sums: a vector for each panel of each token. Columns are taken some at a time
    (`packed.COLUMNS`), so that their panels stay in the cache while the tokens pass.
    """
    unpack, tile = make_unpack(reader), make_tile(reader, in_tile, token_addresses)
    stored_bytes, stored_elements = reader.block_bytes, reader.block_elements
    panel_group = 4 * panel_block_bytes(reader)

    @inline
    def products(
        first: int,
        w: int,
        n: int,
        k: int,
        row_bytes: int,
        x: int,
        x_stride: int,
        tokens: int,
        scratch: int,
    ) -> int:
        at_once = min((k + packed.GROUP - 1) // packed.GROUP * packed.GROUP, packed.COLUMNS)
        panel_bytes = at_once // packed.GROUP * panel_group
        if tokens <= packed.FEW_TOKENS:
            at_once = min(at_once, packed.FEW_COLUMNS)
        sums: int = scratch + PANELS * panel_bytes
        buffer = sums + (packed.TOKENS + packed.TILE_TOKENS) * PANELS * VECTOR_BYTES
        for i in range((tokens + in_tile - 1) // in_tile * in_tile * PANELS):
            store(sums + i * VECTOR_BYTES, zero(F32))
        for column in range(0, k, at_once):
            columns = min(at_once, k - column)
            for panel in range(PANELS):
                row = min(first + panel * WIDTH, n - 1)
                at = w + row * row_bytes + column // stored_elements * stored_bytes
                to = scratch + panel * panel_bytes
                unpack(at, row_bytes, (n - 1 - row) * row_bytes, columns, to, buffer)
            start = column // packed.GROUP * packed.GROUP_BYTES
            for token in range(0, tokens, in_tile):
                at, last = x + token * x_stride, (tokens - 1 - token) * x_stride
                to = sums + token * PANELS * VECTOR_BYTES
                tile(scratch, panel_bytes, columns // packed.BLOCK, start, at, x_stride, last, to)
        return sums

    return products


def make_integer_tiles(kind: str, tokens: int = TOKENS) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, w, x, ..., rows, scratch)`.

    Weights of format `kind`, PANELS * W rows at a time, begin to end of these, times all packed rows,
    `tokens` of them (at most `packed.TILE_TOKENS`) in a tile.
    """
    reader = make_read(kind)
    products = make_panel_products(reader, tokens, make_token_addresses(tokens))
    stored_bytes, stored_elements = reader.block_bytes, reader.block_elements

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
        row_bytes = k // stored_elements * stored_bytes
        for start in range(0, rows, packed.TOKENS):
            taken = min(packed.TOKENS, rows - start)
            for index in range(begin, end):
                first, at = index * PANELS * WIDTH, x + start * x_stride
                sums = products(first, w, n, k, row_bytes, at, x_stride, taken, scratch)
                for token in range(taken):
                    to = (start + token) * y_stride
                    for panel in range(PANELS):
                        column = first + panel * WIDTH
                        if column < n:
                            values = load(F32, sums + (token * PANELS + panel) * VECTOR_BYTES)
                            store_outputs(values, n - column, y, residual, bias, column, to)

    return multiply
