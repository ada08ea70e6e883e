"""Products of one value with several weights of one format, in one call: each thread takes a run of all rows.

`table` has four int64 for each product: the addresses of its weights [n, k] and of its bias float32 [n] (0:
none), n, and how many bytes after `y` its results float32 [rows, n] begin. The rest is as of
`products.mul_mat`, whose loops it calls.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Code, Dim, Int
from graphml_cpu.kernels.products.mul_mat import PANEL_ROWS, multiply_all_rows, multiply_tiles
from graphml_cpu.kernels.share import share
from graphml_cpu.simd import load_i64

_ENTRY = 32


def make_linears() -> Callable[..., None]:
    """Without `tiles` any number of rows is multiplied as a few are."""

    def linears(
        ith: Int, nth: Int, few: Code, tiles: Code, table: Address, count: Int, x: Address, y: Address,
        k: Int, x_stride: Int, few_rows: Int, scratch: Address, rows: Dim,
    ) -> None:  # fmt: skip
        is_few = rows <= few_rows or tiles == 0
        unit = 1 if is_few else PANEL_ROWS
        total = 0
        for i in range(count):
            total += (load_i64(table + i * _ENTRY + 16) + unit - 1) // unit
        begin, end = share(ith, nth, total)
        for i in range(count):
            entry = table + i * _ENTRY
            n = load_i64(entry + 16)
            units = (n + unit - 1) // unit
            first, last = max(begin, 0), min(end, units)
            if first < last:
                w, bias, to = load_i64(entry), load_i64(entry + 8), y + load_i64(entry + 24)
                if is_few:
                    multiply_all_rows(few, first, last, w, x, to, 0, bias, k, x_stride, n * 4, rows, scratch)
                else:
                    multiply_tiles(
                        tiles, first, last, w, x, to, 0, bias, n, k, x_stride, n * 4, rows, scratch
                    )
            begin, end = begin - units, end - units

    return linears
