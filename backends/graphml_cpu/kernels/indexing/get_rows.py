"""Rows of a table by number, decoded to float32: the embedding of tokens, in any weight format.

Knows rows; knows no single format.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.kernels.formats import make_decode
from graphml_cpu.kernels.share import share
from graphml_cpu.simd import load_i32


def make_get_rows(format: str) -> Callable[..., None]:
    """out[t] = float32 of table[indices[t]]; `format` is a name of `graphml_cpu.kernels.formats`.

    indices int32 [rows], clamped to 0 .. n_table_rows - 1; table: rows of k elements, `row_bytes` apart; out
    float32 [rows, k], rows `out_stride` bytes apart.
    """
    decode = make_decode(format)

    def get_rows(
        ith: Int, nth: Int, table: Address, indices: Address, out: Address, k: Int, row_bytes: Int,
        n_table_rows: Int, out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, rows)
        for t in range(begin, end):
            row = max(0, min(load_i32(indices + t * 4), n_table_rows - 1))
            decode(table + row * row_bytes, out + t * out_stride, k)

    return get_rows
