"""Panels of decoded weights times gathered token rows: the part that all products through decoders share.

A panel is a tile of weight rows, PANEL_ROWS x PANEL_ELEMENTS float32, which stays in the cache of its thread
while token rows meet it. Which rows those are and where their outputs go stands in a list of addresses, so
that the rows of a batch and those of one expert are the same to it. Each output is one vector of partial sums
over k and then a fixed tree, whatever the number of tokens, threads or neighbouring rows: a token's result
does not depend on its batch. Knows formats only through their decoders.
"""

from __future__ import annotations

from typing import Any

from graphml_quant import by_name

from graphml_cpu import target
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats import make_decode
from graphml_cpu.kernels.share import Vector
from graphml_cpu.layouts import LISTED_BYTES, PANEL_ELEMENTS, PANEL_ROWS, TOKEN_BLOCK
from graphml_cpu.simd import (
    F32,
    WIDTH,
    fma,
    high_half,
    load,
    load_i64,
    load_partial,
    low_half,
    shuffle_pair_by,
    store,
    store_i64,
    store_partial,
    vector,
    zero,
)

# A register tile is 4 weight rows by TOKENS token rows: 16 sums where there are 32 registers, else 8.
TOKENS = 4 if target.current().registers == 32 else 2
# For this many token rows and fewer, decoding sets the pace: 4 weight rows at a time stay in the first cache.
_FEW_TOKENS = 3

_F32x4 = vector("f32", 4)
_low_pairs, _high_pairs = shuffle_pair_by([0, 1, 4, 5]), shuffle_pair_by([2, 3, 6, 7])
_even, _odd = shuffle_pair_by([0, 2, 4, 6]), shuffle_pair_by([1, 3, 5, 7])

FourVectors = tuple[Vector, Vector, Vector, Vector]


@inline
def _zeros() -> FourVectors:
    return zero(F32), zero(F32), zero(F32), zero(F32)


@inline
def _load_rows(address: int, row_bytes: int) -> FourVectors:
    return (
        load(F32, address),
        load(F32, address + row_bytes),
        load(F32, address + 2 * row_bytes),
        load(F32, address + 3 * row_bytes),
    )


@inline
def _load_row_tails(address: int, row_bytes: int, count: int) -> FourVectors:
    return (
        load_partial(F32, address, count),
        load_partial(F32, address + row_bytes, count),
        load_partial(F32, address + 2 * row_bytes, count),
        load_partial(F32, address + 3 * row_bytes, count),
    )


@inline
def _add_products(sums: FourVectors, w: FourVectors, x: Vector) -> FourVectors:
    return (
        fma(w[0], x, sums[0]),
        fma(w[1], x, sums[1]),
        fma(w[2], x, sums[2]),
        fma(w[3], x, sums[3]),
    )


@inline
def _halves(v: Vector) -> Vector:
    return low_half(v) + high_half(v)


@inline
def _quarters(v: Vector) -> Vector:
    return _halves(_halves(v))


@inline
def _itself(v: Vector) -> Vector:
    return v


# The sums of the lanes that are 4 apart: 4 lanes.
_fold = {4: _itself, 8: _halves, 16: _quarters}[WIDTH]


@inline
def _store_sums(sums: FourVectors, address: int) -> None:
    """Store the sum of the lanes of each of the four vectors: four float32."""
    a, b, c, d = _fold(sums[0]), _fold(sums[1]), _fold(sums[2]), _fold(sums[3])
    first = _low_pairs(a, b) + _high_pairs(a, b)
    second = _low_pairs(c, d) + _high_pairs(c, d)
    store(address, _even(first, second) + _odd(first, second))


# The register tiles: dots[token, row] = x[token] . w[row] over `k` elements, for 4 rows `w_bytes` apart and
# 1, 2 or 4 listed tokens, whose rows begin at `offset`; dots float32 [tokens, 4].


@inline
def _dots_1(w: int, w_bytes: int, listed: int, offset: int, k: int, dots: int) -> None:
    x, whole = load_i64(listed) + offset, k - k % WIDTH
    sums = _zeros()
    for i in range(0, whole * 4, WIDTH * 4):
        sums = _add_products(sums, _load_rows(w + i, w_bytes), load(F32, x + i))
    if whole < k:
        tails = _load_row_tails(w + whole * 4, w_bytes, k - whole)
        sums = _add_products(sums, tails, load_partial(F32, x + whole * 4, k - whole))
    _store_sums(sums, dots)


@inline
def _dots_2(w: int, w_bytes: int, listed: int, offset: int, k: int, dots: int) -> None:
    x, x1, whole = load_i64(listed) + offset, load_i64(listed + LISTED_BYTES) + offset, k - k % WIDTH
    a, b = _zeros(), _zeros()
    for i in range(0, whole * 4, WIDTH * 4):
        rows = _load_rows(w + i, w_bytes)
        a = _add_products(a, rows, load(F32, x + i))
        b = _add_products(b, rows, load(F32, x1 + i))
    if whole < k:
        at, rest = whole * 4, k - whole
        tails = _load_row_tails(w + at, w_bytes, rest)
        a = _add_products(a, tails, load_partial(F32, x + at, rest))
        b = _add_products(b, tails, load_partial(F32, x1 + at, rest))
    _store_sums(a, dots)
    _store_sums(b, dots + 16)


@inline
def _dots_4(w: int, w_bytes: int, listed: int, offset: int, k: int, dots: int) -> None:
    x, x1, whole = load_i64(listed) + offset, load_i64(listed + LISTED_BYTES) + offset, k - k % WIDTH
    x2, x3 = load_i64(listed + 2 * LISTED_BYTES) + offset, load_i64(listed + 3 * LISTED_BYTES) + offset
    a, b, c, d = _zeros(), _zeros(), _zeros(), _zeros()
    for i in range(0, whole * 4, WIDTH * 4):
        rows = _load_rows(w + i, w_bytes)
        a = _add_products(a, rows, load(F32, x + i))
        b = _add_products(b, rows, load(F32, x1 + i))
        c = _add_products(c, rows, load(F32, x2 + i))
        d = _add_products(d, rows, load(F32, x3 + i))
    if whole < k:
        at, rest = whole * 4, k - whole
        tails = _load_row_tails(w + at, w_bytes, rest)
        a = _add_products(a, tails, load_partial(F32, x + at, rest))
        b = _add_products(b, tails, load_partial(F32, x1 + at, rest))
        c = _add_products(c, tails, load_partial(F32, x2 + at, rest))
        d = _add_products(d, tails, load_partial(F32, x3 + at, rest))
    _store_sums(a, dots)
    _store_sums(b, dots + 16)
    _store_sums(c, dots + 32)
    _store_sums(d, dots + 48)


_dots_many = _dots_4 if TOKENS == 4 else _dots_2


@inline
def _load_4(address: int, count: int) -> Vector:
    return load(_F32x4, address) if count >= 4 else load_partial(_F32x4, address, count)


@inline
def _add(y: int, residual: int, bias: int, dots: int, count: int, is_first: bool) -> None:
    """Add four dot products to `count` outputs; a first tile over k sets them, with bias and residual."""
    total = load(_F32x4, dots)
    if is_first:
        if bias != 0:
            total = total + _load_4(bias, count)
        if residual != 0:
            total = total + _load_4(residual, count)
    else:
        total = _load_4(y, count) + total
    if count >= 4:
        store(y, total)
    else:
        store_partial(y, total, count)


@inline
def list_token(scratch: int, i: int, x: int, y: int, residual: int) -> None:
    """Token i of the next block, below TOKEN_BLOCK: addresses of its row, outputs and residuals (or 0)."""
    at = scratch + i * LISTED_BYTES
    store_i64(at, x)
    store_i64(at + 8, y)
    store_i64(at + 16, residual)


@inline
def _multiply(
    panel: int, height: int, length: int, tokens: int, listed: int, x_offset: int, y_offset: int, bias: int,
    is_first: bool, dots: int,
) -> None:  # fmt: skip
    """`tokens` listed rows x `height` outputs of a decoded panel, whose offsets in them are given.

    bias: that of the panel's first output.
    """
    for token in range(0, tokens, TOKENS):
        in_tile, at = min(TOKENS, tokens - token), listed + token * LISTED_BYTES
        for row in range(0, height, 4):
            w_tile = panel + row * length * 4
            if in_tile == TOKENS:
                _dots_many(w_tile, length * 4, at, x_offset, length, dots)
            else:
                for i in range(in_tile):
                    _dots_1(w_tile, length * 4, at + i * LISTED_BYTES, x_offset, length, dots + i * 16)
            for i in range(in_tile):
                place, record = y_offset + row * 4, at + i * LISTED_BYTES
                y, residual = load_i64(record + 8) + place, load_i64(record + 16)
                residual_at = residual + place if residual != 0 else 0
                bias_at = bias + row * 4 if bias != 0 else 0
                _add(y, residual_at, bias_at, dots + i * 16, height - row, is_first)


def make_multiply_block(format: str) -> Any:
    """An inline function that multiplies the listed rows of one block with rows begin to end of a matrix.

    `multiply_block(w, row_bytes, begin, end, k, tokens, bias, scratch)`: w: rows of k elements of `format`,
    `row_bytes` apart; tokens: how many `list_token` put into scratch, which is this thread's own
    `layouts.panel_scratch_bytes(k)` bytes; bias: address of that of the matrix's first row or 0.
    """
    decode = make_decode(format)
    block_elements, block_bytes = by_name(format).block_elements, by_name(format).block_bytes

    @inline
    def multiply_block(
        w: int, row_bytes: int, begin: int, end: int, k: int, tokens: int, bias: int, scratch: int
    ) -> None:
        dots = (scratch + TOKEN_BLOCK * LISTED_BYTES + 63) // 64 * 64
        panel = dots + 64
        panel_rows = 4 if tokens <= _FEW_TOKENS else PANEL_ROWS
        for start in range(0, k, PANEL_ELEMENTS):
            length, tile = min(PANEL_ELEMENTS, k - start), w + start // block_elements * block_bytes
            for top in range(begin, end, panel_rows):
                height = min(panel_rows, end - top)
                for row in range(height):
                    decode(tile + (top + row) * row_bytes, panel + row * length * 4, length)
                bias_at = bias + top * 4 if bias != 0 else 0
                _multiply(
                    panel, height, length, tokens, scratch, start * 4, top * 4, bias_at, start == 0, dots
                )

    return multiply_block
