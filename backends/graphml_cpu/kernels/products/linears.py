"""Products of one value with several weights of one format, in one call: each thread takes a run of all rows.

`table` has four int64 for each product: the addresses of its weights [n, k] and of its bias float32 [n] (0:
none), n, and how many bytes after `y` its results float32 [rows, n] begin. The rest is as of
`products.mul_mat`, whose loops these are.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.kernels.products.mul_mat import PANEL_ROWS, make_many, make_rows
from graphml_cpu.kernels.share import share
from graphml_cpu.layouts import FEW_ROWS
from graphml_cpu.simd import load_i64

_ENTRY = 32


def make_linears_vec(kind: str) -> Callable[..., None]:
    """For one row of activations, or a few: the weights are read once in file order."""
    multiply = make_rows(kind)

    def linears_vec(
        ith: Int, nth: Int, table: Address, count: Int, x: Address, y: Address, k: Int, x_stride: Int,
        scratch: Address, rows: Dim,
    ) -> None:  # fmt: skip
        total = 0
        for i in range(count):
            total += load_i64(table + i * _ENTRY + 16)
        begin, end = share(ith, nth, total)
        for i in range(count):
            entry = table + i * _ENTRY
            n = load_i64(entry + 16)
            first, last = max(begin, 0), min(end, n)
            if first < last:
                w, bias, to = load_i64(entry), load_i64(entry + 8), y + load_i64(entry + 24)
                multiply(first, last, w, x, to, 0, bias, k, x_stride, n * 4, rows)
            begin, end = begin - n, end - n

    return linears_vec


def make_linears(kind: str) -> Callable[..., None]:
    """For any number of rows of activations: panels of weights are unpacked and used for all rows."""
    multiply_few, multiply_many = make_rows(kind), make_many(kind)

    def linears(
        ith: Int, nth: Int, table: Address, count: Int, x: Address, y: Address, k: Int, x_stride: Int,
        scratch: Address, rows: Dim,
    ) -> None:  # fmt: skip
        unit = 1 if rows <= FEW_ROWS else PANEL_ROWS
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
                if rows <= FEW_ROWS:
                    multiply_few(first, last, w, x, to, 0, bias, k, x_stride, n * 4, rows)
                else:
                    multiply_many(first, last, w, x, to, 0, bias, n, k, x_stride, n * 4, rows, scratch)
            begin, end = begin - units, end - units

    return linears
