"""Rows of quantised weights times packed activations, a row at a time: one token, or a few.

The weights are read once, in file order, which is all that counts while memory sets the pace. Knows rows;
a group of weights is read by the format's `Reader` and multiplied by `integer_groups`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import packed
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats import make_read
from graphml_cpu.kernels.formats._groups import F32x16, Reader
from graphml_cpu.kernels.products.integer_groups import make_add_group
from graphml_cpu.kernels.products.outputs import AHEAD, store_output
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import prefetch, sum_lanes, zero


def _make_each(add_group: Callable[..., Any], tokens: int) -> Callable[..., Any]:
    """An inline function `each(group, xs, at, sums)`: a group times the tokens whose rows are at `xs`.

    `sums` has a pair (total, least) for each token.
    """
    if tokens == 1:

        @inline
        def one(group: Any, xs: Any, at: int, sums: Any) -> Any:
            return (add_group(group, xs[0] + at, sums[0][0], sums[0][1]),)

        return one

    half = tokens // 2
    first, second = _make_each(add_group, half), _make_each(add_group, tokens - half)

    @inline
    def several(group: Any, xs: Any, at: int, sums: Any) -> Any:
        return first(group, xs[:half], at, sums[:half]) + second(group, xs[half:], at, sums[half:])

    return several


def _make_unit(reader: Reader, tokens: int) -> Callable[..., Any]:
    """An inline function `unit(groups, xs, at, sums)`: all groups of a unit times the tokens."""
    each = _make_each(make_add_group(reader)[0], tokens)

    @inline
    def one_group(groups: Any, xs: Any, at: int, sums: Any) -> Any:
        return each(groups[0], xs, at, sums)

    @inline
    def two_groups(groups: Any, xs: Any, at: int, sums: Any) -> Any:
        return each(groups[1], xs, at + packed.GROUP_BYTES, each(groups[0], xs, at, sums))

    return one_group if reader.groups == 1 else two_groups


def make_zero_sums(reader: Reader, tokens: int) -> Callable[..., Any]:
    """An inline function: `tokens` pairs of a total and a least, all zero."""
    least = make_add_group(reader)[1]

    @inline
    def one() -> Any:
        return ((zero(F32x16), zero(least)),)

    if tokens == 1:
        return one
    rest = make_zero_sums(reader, tokens - 1)

    @inline
    def more() -> Any:
        first = one()
        return first + rest()

    return more


def make_row(reader: Reader, tokens: int) -> Callable[..., Any]:
    """An inline function `row(w, xs, k)`: a weight row times the tokens' packed rows at the addresses `xs`.

    Gives a pair of vectors for each token, whose lanes are all to be added up.
    """
    unit, zeros = _make_unit(reader, tokens), make_zero_sums(reader, tokens)
    last_unit = _make_unit(reader, tokens) if reader.groups == 1 else unit
    read, read_rest = reader.read, reader.read_rest
    size, elements = reader.unit_bytes, reader.groups * packed.GROUP
    block = reader.block_elements
    step = reader.groups * packed.GROUP_BYTES
    # Of a line now and then that is missed the neighbour is fetched, and the processor brings it by itself.
    lines = (size + 32) // 64

    @inline
    def units(w: int, xs: Any, k: int) -> Any:
        sums = zeros()
        at = 0
        for _ in range(k // elements):
            for line in range(lines):
                prefetch(w + AHEAD + 64 * line)
            sums = unit(read(w), xs, at, sums)
            w += size
            at += step
        return sums

    @inline
    def units_and_rest(w: int, xs: Any, k: int) -> Any:
        sums = units(w, xs, k)
        whole = k // elements
        left = (k - whole * elements) // block
        if left > 0:
            sums = last_unit(read_rest(w + whole * size, left), xs, whole * step, sums)
        return sums

    return units if read_rest is None else units_and_rest


@inline
def finish(sums: tuple[Vector, Vector]) -> Number:
    """A result from a token's pair of vectors."""
    return sum_lanes(sums[0]) + sum_lanes(sums[1])


def make_integer_rows(kind: str) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, w, x, y, residual, bias, k, x_stride, y_stride, rows)`.

    Weight rows begin to end of format `kind` times all `rows` packed rows.
    """
    reader = make_read(kind)
    row_1, row_2, row_4 = make_row(reader, 1), make_row(reader, 2), make_row(reader, 4)
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
    ) -> None:
        row_bytes = k // block_elements * block_bytes
        if rows == 1:
            for index in range(begin, end):
                (a,) = row_1(w + index * row_bytes, (x,), k)
                store_output(finish(a), y, residual, bias, index, 0)
            return
        if rows == 2:
            for index in range(begin, end):
                a, b = row_2(w + index * row_bytes, (x, x + x_stride), k)
                store_output(finish(a), y, residual, bias, index, 0)
                store_output(finish(b), y, residual, bias, index, y_stride)
            return
        last = x + (rows - 1) * x_stride
        for index in range(begin, end):
            for token in range(0, rows, 4):
                # Past the last token the last one is computed again, and not stored.
                x0 = x + token * x_stride
                x1, x2 = min(x0 + x_stride, last), min(x0 + 2 * x_stride, last)
                at, to = w + index * row_bytes, token * y_stride
                a, b, c, d = row_4(at, (x0, x1, x2, min(x0 + 3 * x_stride, last)), k)
                store_output(finish(a), y, residual, bias, index, to)
                if token + 1 < rows:
                    store_output(finish(b), y, residual, bias, index, to + y_stride)
                if token + 2 < rows:
                    store_output(finish(c), y, residual, bias, index, to + 2 * y_stride)
                if token + 3 < rows:
                    store_output(finish(d), y, residual, bias, index, to + 3 * y_stride)

    return multiply
