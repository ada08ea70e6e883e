"""Panels of quantised weights times many packed rows: the register tile of the integer products.

A tile keeps the eight vectors of a panel's block (`integer_panels`) in registers while the tokens pass: each
brings four bytes at a time into all lanes. Knows panels and the packed layout; a format is its
`CpuFormatReader`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir

from graphml_cpu import packed, target
from graphml_cpu.frontend import inline, types
from graphml_cpu.frontend.operation import operation
from graphml_cpu.kernels.formats import make_read
from graphml_cpu.kernels.formats._groups import CpuFormatReader
from graphml_cpu.kernels.products.integer_groups import Operand, make_operand
from graphml_cpu.kernels.products.integer_panels import make_unpack, panel_block_bytes
from graphml_cpu.kernels.products.outputs import store_outputs
from graphml_cpu.kernels.products.register_tiles import (
    VECTOR_BYTES,
    make_load_tuple,
    make_token_addresses,
    make_zeros,
    store_tuple,
)
from graphml_cpu.simd import F32, I32, U8, WIDTH, build, load, prefetch_near, prefetch_write
from graphml_cpu.simd.bytes import emit_dot4, emit_dot4_signed, emit_fours
from graphml_cpu.simd.types import splat_value

# Panels and tokens of a tile: an integer sum and a total for each pair of them stay in registers, and what is
# loaded serves as many products as the other side has.
PANELS = 2
TOKENS = 4 if target.current().registers == 32 else 2


def _vectors_at(
    builder: ir.IRBuilder, address: ir.Value, first: int, count: int, kind: Any
) -> list[ir.Value]:
    """IR: vectors `first` to `first + count` of a panel's block."""
    vectors = []
    for index in range(first, first + count):
        where = build.pointer(builder, address, kind.llvm_type, index * VECTOR_BYTES)
        vectors.append(builder.load(where, align=VECTOR_BYTES))
    return vectors


def _everywhere(builder: ir.IRBuilder, address: ir.Value, offset: int, kind: Any) -> ir.Value:
    """IR: the number at an address, in every lane."""
    element = builder.load(build.pointer(builder, address, kind.llvm_element, offset), align=4)
    return splat_value(builder, element, kind)


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
            seeds = [builder.ashr(vector, build.constant(I32.llvm_type, operand.shift)) for vector in seeds]
    sums = {(panel, token): seeds[token] for panel, token in pairs}
    for half in halves:
        fours = [emit_fours(builder, x, half * packed.HIGH_HALF, 4, WIDTH) for x in xs]
        for i in range(4):
            for panel, token in pairs:
                four = builder.bitcast(fours[token][i], U8.llvm_type)
                sums[panel, token] = dot(builder, sums[panel, token], panels[panel][4 * half + i], four)
    return {pair: builder.sitofp(total, F32.llvm_type) for pair, total in sums.items()}


def make_add_block(reader: CpuFormatReader) -> Callable[..., Any]:
    """An operation `add_block(panel, next, xs, group, place, sums)`: a block of panels times the tokens `xs`.

    `panel` is the first panel's block, the others' are `next` bytes behind one another; `xs` are the
    addresses of the tokens' rows, `group` the offset in them of the packed group, `place` (0 to 3) the block
    in it. `sums` has one F32 for each panel of each token; lanes are weight rows.
    """
    operand = make_operand(reader, for_panel=True)
    halves_of = ((0, 1),) if reader.scales == 1 else ((0,), (1,))
    sums_at = ((), (packed.SUM,), (packed.LOW_SUM, packed.HIGH_SUM))[reader.minima]

    def add_block(panel: Any, next: Any, xs: Any, group: Any, place: Any, sums: Any) -> Any:
        def emit(builder: ir.IRBuilder, *args: Any) -> Any:
            panel_at, next_at, xs_at, group_at, place_at, totals = args
            starts = [builder.add(panel_at, builder.mul(next_at, build.I64(i))) for i in range(PANELS)]
            weights = [_vectors_at(builder, start, 0, 8, U8) for start in starts]
            scales = [_vectors_at(builder, start, 8, reader.scales, F32) for start in starts]
            minima = [_vectors_at(builder, start, 8 + reader.scales, reader.minima, F32) for start in starts]
            rows = [builder.add(builder.extract_value(xs_at, i), group_at) for i in range(len(xs))]
            values = [builder.add(row, builder.mul(place_at, build.I64(16))) for row in rows]
            floats = [builder.add(row, builder.mul(place_at, build.I64(4))) for row in rows]
            result = [builder.extract_value(totals, i) for i in range(len(sums))]
            by_half = [_dots(builder, operand, weights, values, halves) for halves in halves_of]
            for token, i in itertools.product(range(len(xs)), range(PANELS)):
                number, at = _everywhere(builder, floats[token], packed.SCALE, F32), token * PANELS + i
                products = [half[i, token] for half in by_half]
                # What is scaled last waits for the sums, and holds no register before.
                if len(products) == 1:
                    scaled, last = builder.fmul(products[0], number), scales[i][0]
                else:
                    low = builder.fmul(products[0], scales[i][0])
                    scaled, last = build.multiply_add(builder, products[1], scales[i][1], low), number
                result[at] = build.multiply_add(builder, scaled, last, result[at])
            for index, where in enumerate(sums_at):
                for token, i in itertools.product(range(len(xs)), range(PANELS)):
                    number, at = _everywhere(builder, floats[token], where, F32), token * PANELS + i
                    result[at] = build.multiply_add(builder, minima[i][index], number, result[at])
            return tuple(result)

        return sums(types.int64, types.int64, xs, types.int64, types.int64, sums), emit

    return operation(add_block)


def make_tile(reader: CpuFormatReader, tokens: int, token_addresses: Any, places: int) -> Callable[..., Any]:
    """An inline function: columns of panels times `tokens` rows (past the end the last again).

    `groups` groups of 128 columns, which begin with the group at byte `start` of the packed rows. What is
    found is added to what is at `out` unless `fresh`: a vector for each panel of each token, and that for
    each of `places`: 1; or 4, which keeps blocks apart by their place in a group, as `integer_rows` does.
    token_addresses: how the rows are found from x, x_stride and last, one of `register_tiles`.
    """
    add_block, load_totals = make_add_block(reader), make_load_tuple(tokens * PANELS)
    block_bytes, no_totals = panel_block_bytes(reader), make_zeros(tokens * PANELS)
    place_bytes = tokens * PANELS * VECTOR_BYTES

    @inline
    def tile(
        panel: int, next: int, groups: int, start: int, x: int, x_stride: int, last: int, fresh: bool,
        out: int,
    ) -> None:  # fmt: skip
        xs = token_addresses(x, x_stride, last)
        for place in range(places):
            totals = no_totals()
            if not fresh:
                totals = load_totals(out)
            for group in range(groups):
                for block in range(place, 4, places):
                    totals = add_block(panel, next, xs, start + group * packed.GROUP_BYTES, block, totals)
                    panel += block_bytes
            store_tuple(out, totals)
            out += place_bytes

    return tile


def _make_outputs(
    in_tile: int, offset_of: Callable[..., Any], places: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Inline functions that fetch and store a tile's results; offset_of: as of `make_panel_products`."""
    place_bytes = in_tile * PANELS * VECTOR_BYTES

    @inline
    def fetch(first: int, y: int, x: int, x_stride: int, y_stride: int, token: int, tokens: int) -> None:
        for i in range(min(in_tile, tokens - token)):
            at = y + offset_of(x, x_stride, y_stride, token + i) + first * 4
            for panel in range(PANELS):
                prefetch_write(at + panel * VECTOR_BYTES)

    @inline
    def put(
        first: int, n: int, y: int, residual: int, bias: int, x: int, x_stride: int, y_stride: int,
        token: int, tokens: int, sums: int,
    ) -> None:  # fmt: skip
        for i in range(min(in_tile, tokens - token)):
            offset = offset_of(x, x_stride, y_stride, token + i)
            for panel in range(PANELS):
                row = first + panel * WIDTH
                if row < n:
                    at = sums + (i * PANELS + panel) * VECTOR_BYTES
                    values = load(F32, at)
                    if places > 1:
                        last_two = load(F32, at + 2 * place_bytes) + load(F32, at + 3 * place_bytes)
                        values = (values + load(F32, at + place_bytes)) + last_two
                    store_outputs(values, n - row, y, residual, bias, row, offset)

    return fetch, put


@inline
def _fetch_some(at: int, count: int, end: int) -> int:
    """Fetch `count` bytes from an address on, none behind `end`; gives the address behind them."""
    for line in range(at, min(at + count, end), 64):
        prefetch_near(line)
    return at + count


def make_panel_products(
    reader: CpuFormatReader,
    in_tile: int,
    token_addresses: Any,
    offset_of: Callable[..., Any],
    places: int = 1,
) -> Callable[..., Any]:
    """An inline function `products(first, end, w, y, residual, bias, n, k, ..., scratch)`.

    Weight rows `first` to `end` of w [n, k], at most `packed.PAIRS` * PANELS * W of them (past the last
    of w that again), times up to `packed.TOKENS` rows, found from x and x_stride by `token_addresses`,
    `in_tile` of them at once. Token t's results go to the row of y, and come on top of the row of the
    residual, at byte `offset_of(x, x_stride, y_stride, t)`. Columns are taken some at a time
    (`packed.COLUMNS`), so that their panels stay in the cache while the tokens pass. places: sums of each
    product; with `packed.PLACES` they are added up as a few rows are.
    """
    unpack, tile = make_unpack(reader, places), make_tile(reader, in_tile, token_addresses, places)
    fetch_outputs, put_outputs = _make_outputs(in_tile, offset_of, places)
    most_columns = packed.COLUMNS if places == 1 else packed.ORDERED_COLUMNS
    stored_bytes, stored_elements = reader.block_bytes, reader.block_elements
    panel_group, rows_at_once = 4 * panel_block_bytes(reader), packed.PAIRS * PANELS * WIDTH

    @inline
    def products(
        first: int, end: int, w: int, y: int, residual: int, bias: int, n: int, k: int, row_bytes: int,
        x: int, x_stride: int, y_stride: int, tokens: int, scratch: int,
    ) -> None:  # fmt: skip
        at_once = min((k + packed.GROUP - 1) // packed.GROUP * packed.GROUP, most_columns)
        panel_bytes = at_once // packed.GROUP * panel_group
        if tokens <= packed.FEW_TOKENS:
            at_once = min(at_once, packed.FEW_COLUMNS)
        sums: int = scratch + packed.PAIRS * PANELS * panel_bytes
        pair_sums = (packed.TOKENS + packed.TILE_TOKENS) * PANELS * places * VECTOR_BYTES
        buffer = sums + packed.PAIRS * pair_sums
        # The weights that come next are fetched with the tiles, some with each.
        coming = w + min(end, n) * row_bytes
        coming_end = w + min(end + rows_at_once, n) * row_bytes
        tiles = (tokens + in_tile - 1) // in_tile * ((k + at_once - 1) // at_once)
        share = min((coming_end - coming) // tiles // 64 + 1, 64) * 64
        for column in range(0, k, at_once):
            columns, is_last = min(at_once, k - column), column + at_once >= k
            for panel in range((end - first + WIDTH - 1) // WIDTH):
                row = min(first + panel * WIDTH, n - 1)
                at = w + row * row_bytes + column // stored_elements * stored_bytes
                to = scratch + panel * panel_bytes
                unpack(at, row_bytes, (n - 1 - row) * row_bytes, columns, to, buffer)
            start = column // packed.GROUP * packed.GROUP_BYTES
            groups = (columns + packed.GROUP - 1) // packed.GROUP
            for token in range(0, tokens, in_tile):
                at, last = x + token * x_stride, (tokens - 1 - token) * x_stride
                coming = _fetch_some(coming, share, coming_end)
                panel, to = scratch, sums
                if at_once < k:  # else they are done with before the next token
                    to += token * PANELS * places * VECTOR_BYTES
                for row in range(first, end, PANELS * WIDTH):
                    # Results are stored a tile at a time: what their lines cost passes while the next is
                    # multiplied.
                    if is_last:
                        fetch_outputs(row, y, x, x_stride, y_stride, token, tokens)
                    tile(panel, panel_bytes, groups, start, at, x_stride, last, column == 0, to)
                    if is_last:
                        put_outputs(row, n, y, residual, bias, x, x_stride, y_stride, token, tokens, to)
                    panel += PANELS * panel_bytes
                    to += pair_sums

    return products


@inline
def _row_by_row(x: int, x_stride: int, y_stride: int, token: int) -> int:
    return token * y_stride


def make_integer_tiles(kind: str, tokens: int = TOKENS, one_order: bool = False) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, product)`, see `mul_mat`.

    Weights of format `kind`, PANELS * W rows at a time, begin to end of these, times all packed rows,
    `tokens` of them (at most `packed.TILE_TOKENS`) in a tile. one_order: that of `integer_rows`, to the bit.
    """
    reader = make_read(kind)
    places = packed.PLACES if one_order else 1
    products = make_panel_products(reader, tokens, make_token_addresses(tokens), _row_by_row, places)
    stored_bytes, stored_elements = reader.block_bytes, reader.block_elements
    rows_at_once = packed.PAIRS * PANELS * WIDTH

    @inline
    def multiply(begin: int, end: int, product: Any) -> None:
        w, x, y, residual, bias, n, k, x_stride, y_stride, rows, scratch = product
        row_bytes = k // stored_elements * stored_bytes
        for start in range(0, rows, packed.TOKENS):
            taken, at, to = min(packed.TOKENS, rows - start), x + start * x_stride, y + start * y_stride
            rest = residual + start * y_stride if residual != 0 else 0
            last = min(end * PANELS * WIDTH, n)
            for first in range(begin * PANELS * WIDTH, last, rows_at_once):
                stop = min(first + rows_at_once, last)
                products(
                    first, stop, w, to, rest, bias, n, k, row_bytes, at, x_stride, y_stride, taken, scratch
                )

    return multiply
