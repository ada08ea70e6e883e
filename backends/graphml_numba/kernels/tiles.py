"""The inner loops of products: a few rows of weights times rows of x, four by four.

Each sum of a product is made by the same loop whatever rows are beside it, so its bits depend on its own row
and weights alone.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_numba.helpers import F32, Array, helper, sums_helper

FEW_ROWS, MANY_ROWS = 4, 16
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


@helper
def multiply(w: Array, x: Array, picked: Array, sums: Array) -> None:
    """sums[i, r] = the product of row r of w, float32 [rows, k], with row picked[i] of x.

    Both are taken in fours: sums has room for whole ones, and the last of `picked` stands in for missing rows.
    """
    last = picked.shape[0] - 1
    sums[:] = F32(0)
    for first in range(0, w.shape[1], COLUMNS):
        for i in range(0, picked.shape[0], 4):
            a, b = picked[i], picked[min(i + 1, last)]
            c, d = picked[min(i + 2, last)], picked[min(i + 3, last)]
            for row in range(0, w.shape[0], 4):
                add_tile(w, row, x, a, b, c, d, first, sums[i : i + 4, row : row + 4])


@sums_helper
def add_tile(w: Array, row: int, x: Array, a: int, b: int, c: int, d: int, first: int, sums: Array) -> None:
    """Add the products of rows a, b, c and d of x with 4 rows of w, from `row` on, to sums [4, 4].

    Of COLUMNS columns from `first` on. Each of the 8 numbers that the loop reads is used 4 times.
    """
    end = min(first + COLUMNS, w.shape[1])
    w0, w1, w2, w3 = w[row, first:end], w[row + 1, first:end], w[row + 2, first:end], w[row + 3, first:end]
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
def add_four(out: Array, a: F32, b: F32, c: F32, d: F32) -> None:
    """Add four numbers to four."""
    out[0] += a
    out[1] += b
    out[2] += c
    out[3] += d


def decode_and_multiply(decode: Callable[[Array, Array, Array], None]) -> Callable[..., None]:
    """The products of a few rows of a format with rows of x."""

    @helper
    def products(stored: Array, w: Array, s: Array, x: Array, picked: Array, sums: Array) -> None:
        """sums[i, r] = row r of stored times row picked[i] of x; w: room for the decoded rows."""
        for row in range(stored.shape[0]):
            decode(stored[row], w[row], s)
        multiply(w, x, picked, sums)

    return products
