"""The inner loops of products: a few rows of weights times rows of x, four by four.

Each sum of a product is made by the same loop whatever rows are beside it, so its bits depend on its own row
and weights alone.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_numba.helpers import F32, Array, Number, helper, sums_helper

FEW_ROWS, MANY_ROWS = 4, 32
"""Rows of weights that are decoded together, for few rows of x and for many: multiples of 4."""
COLUMNS = 1024
"""Columns of a tile: 4 rows of weights and 4 of x stay in the first cache."""


@helper
def rows_together(n_x: int) -> int:
    """How many rows of weights are decoded together for so many rows of x."""
    return FEW_ROWS if n_x <= 4 else MANY_ROWS


@helper
def padded(n: int) -> int:
    """The next multiple of 4."""
    return (n + 3) // 4 * 4


@sums_helper
def add_tile(w: Array, x: Array, a: int, b: int, c: int, d: int, first: int, end: int, sums: Array) -> None:
    """Add the products of rows a, b, c and d of x with the 4 rows of w to sums [4, 4].

    w has the weights' columns `first` to `end`. Each of the 8 numbers that the loop reads is used 4 times.
    """
    n = end - first
    w0, w1, w2, w3 = w[0, :n], w[1, :n], w[2, :n], w[3, :n]
    xa, xb, xc, xd = x[a, first:end], x[b, first:end], x[c, first:end], x[d, first:end]
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = F32(0)
    c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = F32(0)
    for i in range(w0.shape[0]):
        a0 += xa[i] * w0[i]
        a1 += xa[i] * w1[i]
        a2 += xa[i] * w2[i]
        a3 += xa[i] * w3[i]
        b0 += xb[i] * w0[i]
        b1 += xb[i] * w1[i]
        b2 += xb[i] * w2[i]
        b3 += xb[i] * w3[i]
        c0 += xc[i] * w0[i]
        c1 += xc[i] * w1[i]
        c2 += xc[i] * w2[i]
        c3 += xc[i] * w3[i]
        d0 += xd[i] * w0[i]
        d1 += xd[i] * w1[i]
        d2 += xd[i] * w2[i]
        d3 += xd[i] * w3[i]
    add_four(sums[0], a0, a1, a2, a3)
    add_four(sums[1], b0, b1, b2, b3)
    add_four(sums[2], c0, c1, c2, c3)
    add_four(sums[3], d0, d1, d2, d3)


@helper
def add_four(out: Array, a: Number, b: Number, c: Number, d: Number) -> None:
    """Add four numbers to four."""
    out[0] += a
    out[1] += b
    out[2] += c
    out[3] += d


def decode_and_multiply(decode: Callable[[Array, Array, Array], None]) -> Callable[..., None]:
    """The products of a few rows of weights in a format with rows of x."""

    @helper
    def products(stored: Array, x: Array, picked: Array, w: Array, s: Array, sums: Array) -> None:
        """sums[i, r] = row picked[i] of x times row r of stored.

        Rows are taken in fours: sums has room for whole ones, and the last of `picked` stands in for missing
        rows. w, s: room for decoded rows, 4 n of COLUMNS, and for scales.
        """
        rows, k, last = stored.shape[0], x.shape[1], picked.shape[0] - 1
        sums[:] = F32(0)
        for first in range(0, k, COLUMNS):
            end = min(first + COLUMNS, k)
            begin_word, end_word = stored.shape[1] * first // k, stored.shape[1] * end // k
            for row in range(rows):
                decode(stored[row, begin_word:end_word], w[row, : end - first], s)
            for i in range(0, picked.shape[0], 4):
                a, b = picked[i], picked[min(i + 1, last)]
                c, d = picked[min(i + 2, last)], picked[min(i + 3, last)]
                for row in range(0, rows, 4):
                    add_tile(w[row : row + 4], x, a, b, c, d, first, end, sums[i : i + 4, row : row + 4])

    return products
