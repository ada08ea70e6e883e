"""Rows of quantised weights times packed activations: one row of x here, a few by `interleaved_rows`.

The weights are read once, in file order, which is all that counts while memory sets the pace. Four rows of
weights meet a token at once (`integer_groups`).
A product is four sums, of which block b of a row adds to sum b mod 4; in the end (0 + 1) + (2 + 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import packed
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats import make_read
from graphml_cpu.kernels.formats._groups import F32x16, Reader
from graphml_cpu.kernels.products.integer_groups import finish, make_add_groups, make_read_rows
from graphml_cpu.kernels.products.interleaved_rows import make_interleaved_products
from graphml_cpu.kernels.products.interleaved_tokens import row_address
from graphml_cpu.kernels.products.outputs import AHEAD, store_output
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import extract, prefetch, zero


def make_four_rows(reader: Reader) -> Callable[..., Any]:
    """An inline function `four_rows(ws, x, k)`: four rows of weights times a token.

    ws: a tuple of the rows' addresses, x: the address of the token's packed row. Gives F32x16, four sums for
    each of the four products: see `finish`.
    """
    read, read_rest = make_read_rows(reader)
    first, second = make_add_groups(reader, 0), make_add_groups(reader, reader.groups - 1)
    two_groups = reader.groups == 2
    size, elements = reader.unit_bytes, reader.groups * packed.GROUP
    block = reader.block_elements
    step = reader.groups * packed.GROUP_BYTES
    # Four rows are one stretch of memory: it is fetched in its order, whatever row a line is of.
    lines = (4 * size + 63) // 64

    @inline
    def units(ws: Any, x: int, k: int) -> Any:
        total = zero(F32x16)
        for unit in range(k // elements):
            for line in range(lines):
                prefetch(ws[0] + unit * 4 * size + AHEAD + 64 * line)
            found, at = read(ws, unit * size), x + unit * step
            total = first(found, at, total)
            if two_groups:
                total = second(found, at + packed.GROUP_BYTES, total)
        return total

    @inline
    def units_and_rest(ws: Any, x: int, k: int) -> Any:
        total = units(ws, x, k)
        whole = k // elements
        left = (k - whole * elements) // block
        if left > 0:
            for line in range(lines):
                prefetch(ws[0] + whole * 4 * size + AHEAD + 64 * line)
            total = first(read_rest(ws, whole * size, left), x + whole * step, total)
        return total

    return units if reader.read_rest is None else units_and_rest


@inline
def _row_by_row(x: int, x_stride: int, y_stride: int, token: int) -> int:
    return token * y_stride


def make_integer_rows(kind: str) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, w, x, y, residual, bias, k, x_stride, y_stride, rows)`.

    Weight rows begin to end of format `kind` times all `rows` packed rows.
    """
    reader = make_read(kind)
    four_rows = make_four_rows(reader)
    products = make_interleaved_products(reader, row_address, _row_by_row)
    block_bytes, block_elements = reader.block_bytes, reader.block_elements

    @inline
    def multiply(
        begin: int,
        end: int,
        w: int,
        x: int,
        y: int,
        residual: int,
        bias: int,
        k: int,
        x_stride: int,
        y_stride: int,
        rows: int,
        scratch: int,
    ) -> None:
        row_bytes = k // block_elements * block_bytes
        if rows == 1:
            for index in range(begin, end, 4):
                # Past the last row of weights the last one is multiplied again, and not stored.
                at, left = w + index * row_bytes, end - index
                w1, w2, w3 = min(1, left - 1), min(2, left - 1), min(3, left - 1)
                ws = (at, at + w1 * row_bytes, at + w2 * row_bytes, at + w3 * row_bytes)
                found = finish(four_rows(ws, x, k))
                for i in range(min(left, 4)):
                    store_output(extract(found, 4 * i), y, residual, bias, index + i, 0)
            return
        products(begin, end, w, y, residual, bias, k, row_bytes, x, x_stride, y_stride, rows, scratch)

    return multiply
