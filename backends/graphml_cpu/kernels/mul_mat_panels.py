"""Products of float32 rows with weights of any format: panels of weights are decoded, then multiplied.

A thread takes a range of weight rows. It decodes a tile of them (PANEL_ROWS x PANEL_ELEMENTS float32, which
stay in its cache), multiplies that with all token rows, and goes on. Each output is one vector of partial
sums over k and then a fixed tree, whatever the number of tokens, threads or neighbouring rows: a token's
result does not depend on its batch. Knows formats only through their decoders.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_quant import by_name

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats import make_decode
from graphml_cpu.kernels.share import Vector, share
from graphml_cpu.layouts import PANEL_ELEMENTS, PANEL_ROWS
from graphml_cpu.simd import (
    F32,
    WIDTH,
    fma,
    high_half,
    load,
    load_partial,
    low_half,
    shuffle_pair_by,
    store,
    store_partial,
    vector,
    zero,
)

# A register tile is 4 weight rows by TOKENS token rows: 16 sums where there are 32 registers, else 8.
TOKENS = 4 if WIDTH == 16 else 2
# For this many token rows and fewer, decoding sets the pace: 4 weight rows at a time stay in the first cache.
_FEW_TOKENS = 3
# Token rows that meet a weight tile while it is decoded: 256 KB, so that they stay in the second cache.
_TOKEN_BLOCK = 64

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
# 1, 2 or 4 tokens `x_bytes` apart; dots float32 [tokens, 4].


@inline
def _dots_1(w: int, w_bytes: int, x: int, x_bytes: int, k: int, dots: int) -> None:
    whole = k - k % WIDTH
    sums = _zeros()
    for i in range(0, whole * 4, WIDTH * 4):
        sums = _add_products(sums, _load_rows(w + i, w_bytes), load(F32, x + i))
    if whole < k:
        tails = _load_row_tails(w + whole * 4, w_bytes, k - whole)
        sums = _add_products(sums, tails, load_partial(F32, x + whole * 4, k - whole))
    _store_sums(sums, dots)


@inline
def _dots_2(w: int, w_bytes: int, x: int, x_bytes: int, k: int, dots: int) -> None:
    whole = k - k % WIDTH
    a, b = _zeros(), _zeros()
    for i in range(0, whole * 4, WIDTH * 4):
        rows = _load_rows(w + i, w_bytes)
        a = _add_products(a, rows, load(F32, x + i))
        b = _add_products(b, rows, load(F32, x + x_bytes + i))
    if whole < k:
        tails, at = _load_row_tails(w + whole * 4, w_bytes, k - whole), x + whole * 4
        a = _add_products(a, tails, load_partial(F32, at, k - whole))
        b = _add_products(b, tails, load_partial(F32, at + x_bytes, k - whole))
    _store_sums(a, dots)
    _store_sums(b, dots + 16)


@inline
def _dots_4(w: int, w_bytes: int, x: int, x_bytes: int, k: int, dots: int) -> None:
    whole = k - k % WIDTH
    a, b, c, d = _zeros(), _zeros(), _zeros(), _zeros()
    for i in range(0, whole * 4, WIDTH * 4):
        rows = _load_rows(w + i, w_bytes)
        a = _add_products(a, rows, load(F32, x + i))
        b = _add_products(b, rows, load(F32, x + x_bytes + i))
        c = _add_products(c, rows, load(F32, x + 2 * x_bytes + i))
        d = _add_products(d, rows, load(F32, x + 3 * x_bytes + i))
    if whole < k:
        tails, at = _load_row_tails(w + whole * 4, w_bytes, k - whole), x + whole * 4
        a = _add_products(a, tails, load_partial(F32, at, k - whole))
        b = _add_products(b, tails, load_partial(F32, at + x_bytes, k - whole))
        c = _add_products(c, tails, load_partial(F32, at + 2 * x_bytes, k - whole))
        d = _add_products(d, tails, load_partial(F32, at + 3 * x_bytes, k - whole))
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
def _multiply(
    panel: int, height: int, x: int, x_stride: int, tokens: int, length: int, y: int, y_stride: int,
    residual: int, bias: int, is_first: bool, dots: int,
) -> None:  # fmt: skip
    """All tokens x `height` outputs of a decoded panel; y, residual, bias: those of its first output."""
    for token in range(0, tokens, TOKENS):
        in_tile, x_tile = min(TOKENS, tokens - token), x + token * x_stride
        for row in range(0, height, 4):
            w_tile = panel + row * length * 4
            if in_tile == TOKENS:
                _dots_many(w_tile, length * 4, x_tile, x_stride, length, dots)
            else:
                for i in range(in_tile):
                    _dots_1(w_tile, length * 4, x_tile + i * x_stride, 0, length, dots + i * 16)
            for i in range(in_tile):
                place = (token + i) * y_stride + row * 4
                residual_at = residual + place if residual != 0 else 0
                bias_at = bias + row * 4 if bias != 0 else 0
                _add(y + place, residual_at, bias_at, dots + i * 16, height - row, is_first)


def make_mul_mat_panels(format: str) -> Callable[..., None]:
    """y = x @ decoded(w).T + bias + residual, for weights of `format` (a name of `kernels.formats`).

    w: n rows of k elements, `row_bytes` apart. x float32 [rows, k], rows `x_stride` bytes apart. y float32
    [rows, n] and residual of the same shape (or address 0), rows `y_stride` bytes apart; residual may be y.
    bias float32 [n] or address 0. scratch: this thread's own `layouts.panel_scratch_bytes(k)` bytes. k is a
    multiple of the format's block; for f32, f16 and bf16 any number.
    """
    decode = make_decode(format)
    block_elements, block_bytes = by_name(format).block_elements, by_name(format).block_bytes

    def mul_mat_panels(
        ith: Int, nth: Int, w: Address, x: Address, y: Address, residual: Address, bias: Address, n: Int,
        k: Int, row_bytes: Int, x_stride: Int, y_stride: Int, scratch: Address, rows: Dim,
    ) -> None:  # fmt: skip
        dots = (scratch + 63) // 64 * 64
        panel = dots + 64
        panel_rows = 4 if rows <= _FEW_TOKENS else PANEL_ROWS
        begin, end = share(ith, nth, (n + PANEL_ROWS - 1) // PANEL_ROWS)
        for token in range(0, rows, _TOKEN_BLOCK):
            tokens = min(_TOKEN_BLOCK, rows - token)
            for start in range(0, k, PANEL_ELEMENTS):
                length, tile = min(PANEL_ELEMENTS, k - start), w + start // block_elements * block_bytes
                for top in range(begin * PANEL_ROWS, min(end * PANEL_ROWS, n), panel_rows):
                    height = min(panel_rows, n - top)
                    for row in range(height):
                        decode(tile + (top + row) * row_bytes, panel + row * length * 4, length)
                    place = token * y_stride + top * 4
                    _multiply(
                        panel,
                        height,
                        x + token * x_stride + start * 4,
                        x_stride,
                        tokens,
                        length,
                        y + place,
                        y_stride,
                        residual + place if residual != 0 else 0,
                        bias + top * 4 if bias != 0 else 0,
                        start == 0,
                        dots,
                    )

    return mul_mat_panels
