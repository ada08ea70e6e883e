"""Rows of a table by number, decoded to float32: the embedding of tokens, cells of a cache, in any format.

Knows rows; knows no single format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Int, RunAddress
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats import make_decode
from graphml_cpu.kernels.share import share
from graphml_cpu.kernels.vector_rows import put_zeros
from graphml_cpu.simd import load_i32


def _make_decode_rows(format: str) -> Any:
    """An inline function that decodes the rows of a thread's share."""
    decode = make_decode(format)

    @inline
    def decode_rows(
        ith: int, nth: int, table: int, indices: int, out: int, k: int, row_bytes: int, n_table_rows: int,
        out_stride: int, rows: int,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, rows)
        for t in range(begin, end):
            row = load_i32(indices + t * 4)
            if 0 <= row < n_table_rows:
                decode(table + row * row_bytes, out + t * out_stride, k)
            else:
                put_zeros(out + t * out_stride, k)

    return decode_rows


def make_get_rows(format: str) -> Callable[..., None]:
    """out[t] = float32 of table[indices[t]]; `format` is a name of `graphml_cpu.kernels.formats`.

    indices int32 [rows], zeros for one outside 0 .. n_table_rows - 1; table: rows of k elements, `row_bytes`
    apart; out float32 [rows, k], rows `out_stride` bytes apart.
    """
    decode_rows = _make_decode_rows(format)

    def get_rows(
        ith: Int, nth: Int, table: Address, indices: Address, out: Address, k: Int, row_bytes: Int,
        n_table_rows: Dim, out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        decode_rows(ith, nth, table, indices, out, k, row_bytes, n_table_rows, out_stride, rows)

    return get_rows


def make_get_cells(format: str) -> Callable[..., None]:
    """The same of a state, whose address is another one for each session: the rows of cells."""
    decode_rows = _make_decode_rows(format)

    def get_cells(
        ith: Int, nth: Int, table: RunAddress, indices: Address, out: Address, k: Int, row_bytes: Int,
        n_table_rows: Dim, out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        decode_rows(ith, nth, table, indices, out, k, row_bytes, n_table_rows, out_stride, rows)

    return get_cells
