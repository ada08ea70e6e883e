"""The inner loops of products: rows of weights times rows of x, in tiles of 8 by 2.

Each sum of a product is made by the same loop whatever rows are beside it, so its bits depend on its own row
and weights alone.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_numba.helpers import F32, Array, Number, helper, sums_helper

FEW_ROWS, MANY_ROWS = 8, 32
"""Rows of weights that are decoded together, for few rows of x and for many: multiples of 8."""
COLUMNS = 1024
"""Columns of a tile: 8 rows of weights and 2 of x fit into the first cache."""


@helper
def rows_together(n_x: int) -> int:
    """How many rows of weights are decoded together for so many rows of x."""
    return FEW_ROWS if n_x <= 2 else MANY_ROWS


@helper
def even(n: int) -> int:
    """The next even number."""
    return (n + 1) // 2 * 2


@sums_helper
def add_tile(w: Array, x: Array, a: int, b: int, first: int, end: int, sums: Array) -> None:
    """Add the products of rows a and b of x with the 8 rows of w to sums [2, 8].

    Of the columns `first` to `end`. Ten numbers are read for 16 products.
    """
    w0, w1, w2, w3 = w[0, first:end], w[1, first:end], w[2, first:end], w[3, first:end]
    w4, w5, w6, w7 = w[4, first:end], w[5, first:end], w[6, first:end], w[7, first:end]
    xa, xb = x[a, first:end], x[b, first:end]
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = F32(0)
    b0 = b1 = b2 = b3 = b4 = b5 = b6 = b7 = F32(0)
    for i in range(w0.shape[0]):
        a0 += xa[i] * w0[i]
        a1 += xa[i] * w1[i]
        a2 += xa[i] * w2[i]
        a3 += xa[i] * w3[i]
        a4 += xa[i] * w4[i]
        a5 += xa[i] * w5[i]
        a6 += xa[i] * w6[i]
        a7 += xa[i] * w7[i]
        b0 += xb[i] * w0[i]
        b1 += xb[i] * w1[i]
        b2 += xb[i] * w2[i]
        b3 += xb[i] * w3[i]
        b4 += xb[i] * w4[i]
        b5 += xb[i] * w5[i]
        b6 += xb[i] * w6[i]
        b7 += xb[i] * w7[i]
    add_four(sums[0, :4], a0, a1, a2, a3)
    add_four(sums[0, 4:], a4, a5, a6, a7)
    add_four(sums[1, :4], b0, b1, b2, b3)
    add_four(sums[1, 4:], b4, b5, b6, b7)


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

        Rows of x are taken in twos: sums has room for an even number, and the last of `picked` is taken twice
        where there is no other. w, s: room for the decoded rows, 8 n of them, and for scales.
        """
        rows, k, last = stored.shape[0], x.shape[1], picked.shape[0] - 1
        for row in range(rows):
            decode(stored[row], w[row], s)
        sums[:] = F32(0)
        for first in range(0, k, COLUMNS):
            end = min(first + COLUMNS, k)
            for row in range(0, rows, 8):
                for i in range(0, picked.shape[0], 2):
                    a, b = picked[i], picked[min(i + 1, last)]
                    add_tile(w[row : row + 8], x, a, b, first, end, sums[i : i + 2, row : row + 8])

    return products
