"""Products of two computed values for each token: y[b] = x[b] @ w[b].T, float32, of every b.

The loops are those of products with float32 weights, so that the sums of a row depend on nothing else. Knows
batches and threads; `float_rows` knows how rows are multiplied.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Code, Dim, Int
from graphml_cpu.kernels.products.mul_mat import multiply_all_rows
from graphml_cpu.kernels.share import share
from graphml_cpu.kernels.vector_rows import get, put
from graphml_cpu.simd import F32, WIDTH, load_f32, splat

_TILE = 4  # rows of w that meet a row of x together


def make_mul_mat_batch() -> Callable[..., None]:
    """w [batches, n, k], x [batches, m, k], y [batches, m, n], float32. few: the `mul_mat_rows` of float32.

    The threads share the rows of all w, four at a time.
    """

    def mul_mat_batch(
        ith: Int, nth: Int, few: Code, w: Address, x: Address, y: Address, n: Int, m: Int, k: Int,
        scratch: Address, batches: Dim,
    ) -> None:  # fmt: skip
        tiles = (n + _TILE - 1) // _TILE
        begin, end = share(ith, nth, batches * tiles)
        for batch in range(begin // tiles, (end + tiles - 1) // tiles):
            first = (max(begin, batch * tiles) - batch * tiles) * _TILE
            last = min((min(end, (batch + 1) * tiles) - batch * tiles) * _TILE, n)
            multiply_all_rows(
                few, first, last, w + batch * n * k * 4, x + batch * m * k * 4, y + batch * m * n * 4, 0, 0,
                k, k * 4, n * 4, m, scratch,
            )  # fmt: skip

    return mul_mat_batch


def make_outer() -> Callable[..., None]:
    """The same of k = 1: y[b, i] = x[b, i] * w[b], rows of n; `rows`: of all x."""

    def outer(ith: Int, nth: Int, w: Address, x: Address, y: Address, n: Int, m: Int, rows: Dim) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            factor, at, to = splat(F32, load_f32(x + row * 4)), w + row // m * n * 4, y + row * n * 4
            for i in range(0, n, WIDTH):
                put(to + i * 4, get(at + i * 4, n - i) * factor, n - i)

    return outer
