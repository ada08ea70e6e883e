"""What is around the experts' products: their weights, and the weighted sum of their outputs.

Knows one token at a time; knows nothing of routing or of the products.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Float, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Number, share
from graphml_cpu.simd import (
    F32,
    WIDTH,
    f32,
    fma,
    load,
    load_f32,
    load_i32,
    load_partial,
    splat,
    store,
    store_f32,
    store_partial,
    zero,
)

_CHUNK = 16 * WIDTH  # columns of one unit of work


def make_combine_experts() -> Callable[..., None]:
    """out[row] = the sum over u of weights[row, u] * y[row, u].

    y float32 [rows, n_used, n], weights float32 [rows, n_used], out float32 [rows, n].
    """

    def combine_experts(
        ith: Int, nth: Int, y: Address, weights: Address, out: Address, n_used: Int, n: Int, rows: Dim
    ) -> None:
        chunks = (n + _CHUNK - 1) // _CHUNK
        begin, end = share(ith, nth, rows * chunks)
        for unit in range(begin, end):
            row = unit // chunks
            first = (unit - row * chunks) * _CHUNK
            source, scales = y + row * n_used * n * 4, weights + row * n_used * 4
            for i in range(first, min(first + _CHUNK, n), WIDTH):
                total = zero(F32)
                rest = n - i
                if rest >= WIDTH:
                    for u in range(n_used):
                        factor = splat(F32, load_f32(scales + u * 4))
                        total = fma(load(F32, source + (u * n + i) * 4), factor, total)
                    store(out + (row * n + i) * 4, total)
                else:
                    for u in range(n_used):
                        factor = splat(F32, load_f32(scales + u * 4))
                        total = fma(load_partial(F32, source + (u * n + i) * 4, rest), factor, total)
                    store_partial(out + (row * n + i) * 4, total, rest)

    return combine_experts


@inline
def hold(total: Number, low: Number, high: Number) -> Number:
    """The number between low and high; NaN stays NaN."""
    if total < low:
        total = low
    if total > high:
        total = high
    return total


def make_gather_normalise() -> Callable[..., None]:
    """out[row, j] = x[row, ids[row, j]] / the sum of those of the row, held between low and high.

    x float32 [rows, n], 0 for an id outside 0 .. n - 1; ids int32 and out float32 [rows, k]. NaN stays NaN.
    """

    def gather_normalise(
        ith: Int, nth: Int, x: Address, ids: Address, out: Address, n: Int, k: Int, low: Float, high: Float,
        rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            total: Number = f32(0.0)
            for place in range(row * k * 4, (row + 1) * k * 4, 4):
                column = load_i32(ids + place)
                value: Number = f32(0.0)
                if 0 <= column < n:
                    value = load_f32(x + (row * n + column) * 4)
                store_f32(out + place, value)
                total += value
            total = hold(total, low, high)
            for place in range(row * k * 4, (row + 1) * k * 4, 4):
                store_f32(out + place, load_f32(out + place) / total)

    return gather_normalise
