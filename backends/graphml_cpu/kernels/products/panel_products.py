"""Rows of weights times gathered rows of numbers: the part that all products in floating point share.

Which token rows those are and where their outputs go is in a list of addresses, so that the rows of a
batch and those of one expert are the same to it. For few tokens a weight row is decoded and multiplied with
each. For many, panels of weights are decoded and transposed (`column_tiles`), stay in their thread's cache
and are multiplied with all tokens; the sums of a token are then the same whatever the number of tokens,
threads or neighbours. A `format` here is also a kind of `float_terms`: with pairs of bfloat16 the token rows
are packed to bfloat16 too. Knows formats only through their decoders.
"""

from __future__ import annotations

from typing import Any

from graphml_quant import by_name

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats import make_decode
from graphml_cpu.kernels.products.column_tiles import TOKENS, make_tile, make_unpack
from graphml_cpu.kernels.products.float_rows import make_row_4
from graphml_cpu.kernels.products.float_terms import TERMS
from graphml_cpu.kernels.products.register_tiles import VECTOR_BYTES
from graphml_cpu.kernels.share import Number
from graphml_cpu.layouts import CHUNK_ELEMENTS, PANEL_ELEMENTS, PANEL_SUMS_BYTES, RECORD_BYTES, TOKEN_BLOCK
from graphml_cpu.simd import (
    F32,
    WIDTH,
    load,
    load_f32,
    load_i64,
    load_partial,
    prefetch,
    store,
    store_f32,
    store_i64,
    store_partial,
    sum_lanes,
)

# Up to this many token rows, turning a panel costs more than it saves.
_FEW_TOKENS = 8


@inline
def list_token(scratch: int, i: int, x: int, y: int, residual: int) -> None:
    """Token i of the next block, below TOKEN_BLOCK: addresses of its row, outputs and residuals (or 0)."""
    at = scratch + i * RECORD_BYTES
    store_i64(at, x)
    store_i64(at + 8, y)
    store_i64(at + 16, residual)


@inline
def _room(scratch: int) -> int:
    """What of a thread's scratch comes after the list."""
    return (scratch + TOKEN_BLOCK * RECORD_BYTES + 63) // 64 * 64


@inline
def _store_one(total: Number, record: int, row: int, bias: int) -> None:
    """A dot product with weight row `row`, with bias and residual, to its place in a token's outputs."""
    residual = load_i64(record + 16)
    if bias != 0:
        total += load_f32(bias + row * 4)
    if residual != 0:
        total += load_f32(residual + row * 4)
    store_f32(load_i64(record + 8) + row * 4, total)


def _make_few(format: str) -> Any:
    """`few(w, row_bytes, begin, end, k, tokens, bias, records, buffer)`: weight rows one by one."""
    plain = format in TERMS
    kind = format if plain else "f32"
    row_4, decode = make_row_4(kind), make_decode("f32" if plain else format)

    @inline
    def few(
        w: int, row_bytes: int, begin: int, end: int, k: int, tokens: int, bias: int, records: int,
        buffer: int,
    ) -> None:  # fmt: skip
        for row in range(begin, end):
            at = w + row * row_bytes
            if not plain:
                decode(at, buffer, k)
                at = buffer
            if tokens == 1:
                x = load_i64(records)
                a, b, c, d = row_4(at, x, x, x, x, k)
                _store_one(sum_lanes(a), records, row, bias)
            else:
                for token in range(0, tokens, 4):
                    # Past the last token the last one is computed again, and not stored.
                    record, left = records + token * RECORD_BYTES, tokens - token
                    record_1 = record + min(1, left - 1) * RECORD_BYTES
                    record_2 = record + min(2, left - 1) * RECORD_BYTES
                    record_3 = record + min(3, left - 1) * RECORD_BYTES
                    x, x1, x2 = load_i64(record), load_i64(record_1), load_i64(record_2)
                    a, b, c, d = row_4(at, x, x1, x2, load_i64(record_3), k)
                    _store_one(sum_lanes(a), record, row, bias)
                    if left > 1:
                        _store_one(sum_lanes(b), record_1, row, bias)
                    if left > 2:
                        _store_one(sum_lanes(c), record_2, row, bias)
                    if left > 3:
                        _store_one(sum_lanes(d), record_3, row, bias)

    return few


@inline
def _store_sums(sums: int, record: int, row: int, count: int, bias: int, is_first: bool) -> None:
    """One vector of sums to `count` outputs of a token from `row` on.

    A first tile over k sets them, with bias and residual; later ones add to them.
    """
    y, residual = load_i64(record + 8) + row * 4, load_i64(record + 16)
    if not is_first:
        residual, bias = y - row * 4, 0
    total = load(F32, sums)
    if count >= WIDTH:
        if bias != 0:
            total = total + load(F32, bias + row * 4)
        if residual != 0:
            total = total + load(F32, residual + row * 4)
        store(y, total)
    else:
        if bias != 0:
            total = total + load_partial(F32, bias + row * 4, count)
        if residual != 0:
            total = total + load_partial(F32, residual + row * 4, count)
        store_partial(y, total, count)


def _make_many(format: str, in_tile: int, in_panel: int) -> Any:
    """`many(w, row_bytes, begin, end, k, tokens, bias, records, sums)`: panels of 2 W rows."""
    unpack = make_unpack(format)
    half_tile, terms = in_tile // 2, TERMS.get(format, TERMS["f32"])
    in_column, x_bytes = terms.elements // WIDTH, terms.x_bytes
    many_tokens, few_tokens = make_tile(in_tile, in_column == 2), make_tile(half_tile, in_column == 2)
    block_elements, block_bytes = 1, terms.weight_bytes
    if format not in TERMS:
        block_elements, block_bytes = by_name(format).block_elements, by_name(format).block_bytes
    decoded_at = PANEL_SUMS_BYTES
    panel_at = decoded_at + 16 * CHUNK_ELEMENTS * 4

    @inline
    def many(
        w: int, row_bytes: int, begin: int, end: int, k: int, tokens: int, bias: int, records: int, sums: int
    ) -> None:
        panel = sums + panel_at
        for start in range(0, k, in_panel * in_column):
            elements, part = min(in_panel * in_column, k - start), w + start // block_elements * block_bytes
            columns = (elements + in_column - 1) // in_column
            for top in range(begin, end, 2 * WIDTH):
                for half in range(2):
                    # Past the last row the last one is decoded again, and its sums are not stored.
                    first = min(top + half * WIDTH, end - 1)
                    last = (end - 1 - first) * row_bytes
                    to = panel + half * VECTOR_BYTES
                    unpack(part + first * row_bytes, row_bytes, last, elements, to, sums + decoded_at)
                token = 0
                while token < tokens:
                    record, left = records + token * RECORD_BYTES, tokens - token
                    taken = half_tile if left <= half_tile else in_tile
                    for i in range(min(taken, left)):
                        # Outputs that many other panels came before: fetched while the tile is worked out.
                        fetched = load_i64(record + i * RECORD_BYTES + 8) + top * 4
                        prefetch(fetched)
                        prefetch(fetched + VECTOR_BYTES)
                    if taken == half_tile:
                        few_tokens(panel, columns, record, left, start * x_bytes, sums)
                    else:
                        many_tokens(panel, columns, record, left, start * x_bytes, sums)
                    for i in range(min(taken, left)):
                        for half in range(2):
                            row = top + half * WIDTH
                            if row < end:
                                at = sums + (half * taken + i) * VECTOR_BYTES
                                _store_sums(at, record + i * RECORD_BYTES, row, end - row, bias, start == 0)
                    token += taken

    return many


def make_multiply_panels(format: str, tile_tokens: int = TOKENS, columns: int = PANEL_ELEMENTS) -> Any:
    """An inline function as that of `make_multiply_block`, for any number of tokens, best for many.

    tile_tokens: of a register tile, even, at most 16; columns: of a panel, at most PANEL_ELEMENTS and whole
    blocks.
    """
    many = _make_many(format, tile_tokens, columns)

    @inline
    def multiply_panels(
        w: int, row_bytes: int, begin: int, end: int, k: int, tokens: int, bias: int, scratch: int
    ) -> None:
        many(w, row_bytes, begin, end, k, tokens, bias, scratch, _room(scratch))

    return multiply_panels


def make_multiply_block(format: str, one_order: bool = False) -> Any:
    """An inline function that multiplies the rows of one block with rows begin to end of a matrix.

    `multiply_block(w, row_bytes, begin, end, k, tokens, bias, scratch)`: w: rows of k elements of `format`,
    `row_bytes` apart; tokens: how many `list_token` put into scratch, which is this thread's own
    `layouts.panel_scratch_bytes(k)` bytes; bias: address of that of the matrix's first row or 0. one_order:
    the sums of a token do not depend on how many there are.
    """
    few = _make_few(format)
    if one_order:

        @inline
        def multiply_few(
            w: int, row_bytes: int, begin: int, end: int, k: int, tokens: int, bias: int, scratch: int
        ) -> None:
            few(w, row_bytes, begin, end, k, tokens, bias, scratch, _room(scratch))

        return multiply_few
    many = make_multiply_panels(format)

    @inline
    def multiply_block(
        w: int, row_bytes: int, begin: int, end: int, k: int, tokens: int, bias: int, scratch: int
    ) -> None:
        if tokens <= _FEW_TOKENS:
            few(w, row_bytes, begin, end, k, tokens, bias, scratch, _room(scratch))
        else:
            many(w, row_bytes, begin, end, k, tokens, bias, scratch)

    return multiply_block
