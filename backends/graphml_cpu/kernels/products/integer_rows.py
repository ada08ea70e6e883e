"""Rows of quantised weights times packed activations: one or two rows of x here, more by `interleaved_rows`.

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
from graphml_cpu.kernels.formats._groups import CpuFormatReader, F32x16
from graphml_cpu.kernels.products.integer_groups import finish, make_add_groups, make_find_rows
from graphml_cpu.kernels.products.interleaved_rows import make_interleaved_products
from graphml_cpu.kernels.products.interleaved_tokens import row_address
from graphml_cpu.kernels.products.outputs import AHEAD, store_output
from graphml_cpu.simd import extract, load_f32, prefetch_near, store, zero


def _make_add_to_each(add: Callable[..., Any], tokens: int) -> Callable[..., Any]:
    """An inline function `(found, x, x_stride, totals) -> totals`: `add` with each of so many tokens."""

    @inline
    def one(found: Any, x: int, x_stride: int, totals: Any) -> Any:
        return (add(found, x, totals[0]),)

    @inline
    def two(found: Any, x: int, x_stride: int, totals: Any) -> Any:
        return add(found, x, totals[0]), add(found, x + x_stride, totals[1])

    return (one, two)[tokens - 1]


def _make_zeros(tokens: int) -> Callable[..., Any]:
    @inline
    def one() -> Any:
        return (zero(F32x16),)

    @inline
    def two() -> Any:
        return zero(F32x16), zero(F32x16)

    return (one, two)[tokens - 1]


def make_four_rows(reader: CpuFormatReader, tokens: int = 1) -> Callable[..., Any]:
    """An inline function `four_rows(ws, x, x_stride, k)`: four rows of weights times one or two tokens.

    ws: a tuple of the rows' addresses, x: the address of the first token's packed row. Gives for each token
    an F32x16, four sums for each of the four products: see `finish`.
    """
    read, read_rest = make_find_rows(reader)
    first, second = (
        _make_add_to_each(make_add_groups(reader, index), tokens) for index in (0, reader.groups - 1)
    )
    zeros = _make_zeros(tokens)
    two_groups = reader.groups == 2
    size, elements = reader.unit_bytes, reader.groups * packed.GROUP
    block = reader.block_elements
    step = reader.groups * packed.GROUP_BYTES
    # Four rows are one stretch of memory: it is fetched in its order, whatever row a line is of.
    lines = (4 * size + 63) // 64

    @inline
    def units(ws: Any, x: int, x_stride: int, k: int) -> Any:
        totals = zeros()
        for unit in range(k // elements):
            for line in range(lines):
                prefetch_near(ws[0] + unit * 4 * size + AHEAD + 64 * line)
            found, at = read(ws, unit * size), x + unit * step
            totals = first(found, at, x_stride, totals)
            if two_groups:
                totals = second(found, at + packed.GROUP_BYTES, x_stride, totals)
        return totals

    @inline
    def units_and_rest(ws: Any, x: int, x_stride: int, k: int) -> Any:
        totals = units(ws, x, x_stride, k)
        whole = k // elements
        left = (k - whole * elements) // block
        if left > 0:
            for line in range(lines):
                prefetch_near(ws[0] + whole * 4 * size + AHEAD + 64 * line)
            totals = first(read_rest(ws, whole * size, left), x + whole * step, x_stride, totals)
        return totals

    return units if reader.read_rest is None else units_and_rest


@inline
def _row_by_row(x: int, x_stride: int, y_stride: int, token: int) -> int:
    return token * y_stride


def _make_some_tokens(reader: CpuFormatReader, tokens: int) -> Callable[..., Any]:
    """An inline function: weight rows begin to end, four at a time, times `tokens` packed rows."""
    four_rows = make_four_rows(reader, tokens)

    @inline
    def some_tokens(
        begin: int, end: int, w: int, x: int, y: int, residual: int, bias: int, k: int, row_bytes: int,
        x_stride: int, y_stride: int, scratch: int,
    ) -> None:  # fmt: skip
        for index in range(begin, end, 4):
            # Past the last row of weights the last one is multiplied again, and not stored.
            at, left = w + index * row_bytes, end - index
            w1, w2, w3 = min(1, left - 1), min(2, left - 1), min(3, left - 1)
            ws = (at, at + w1 * row_bytes, at + w2 * row_bytes, at + w3 * row_bytes)
            sums = four_rows(ws, x, x_stride, k)
            if tokens == 1:
                found = finish(sums[0])
                for i in range(min(left, 4)):
                    store_output(extract(found, 4 * i), y, residual, bias, index + i, 0)
            else:
                for token in range(tokens):
                    store(scratch + 64 * token, finish(sums[token]))
                for token in range(tokens):
                    for i in range(min(left, 4)):
                        value = load_f32(scratch + 64 * token + 16 * i)
                        store_output(value, y, residual, bias, index + i, token * y_stride)

    return some_tokens


def make_integer_rows(kind: str) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, product)`, see `mul_mat`.

    Weight rows begin to end of format `kind` times all `rows` packed rows.
    """
    reader = make_read(kind)
    one, two = _make_some_tokens(reader, 1), _make_some_tokens(reader, 2)
    products = make_interleaved_products(reader, row_address, _row_by_row)
    block_bytes, block_elements = reader.block_bytes, reader.block_elements

    @inline
    def multiply(begin: int, end: int, product: Any) -> None:
        w, x, y, residual, bias, k, x_stride, y_stride, rows, scratch = product
        row_bytes = k // block_elements * block_bytes
        if rows == 1:
            one(begin, end, w, x, y, residual, bias, k, row_bytes, x_stride, y_stride, scratch)
        elif rows == 2:
            two(begin, end, w, x, y, residual, bias, k, row_bytes, x_stride, y_stride, scratch)
        else:
            products(begin, end, w, y, residual, bias, k, row_bytes, x, x_stride, y_stride, rows, scratch)

    return multiply
