"""Rows of Q4_0, Q4_1 and Q8_0 weights times packed activations, a row at a time: one token, or a few.

The weights are read once, in file order, which is all that counts while memory sets the pace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import packed
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.integer_blocks import FORMATS, BlockFormat, make_add_group, make_read_group
from graphml_cpu.kernels.outputs import AHEAD, store_output
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import F32, f32, prefetch, sum_lanes, vector, zero

F32x4 = vector("f32", 4)


def _make_row_1(format: BlockFormat) -> Callable[..., Any]:
    """An inline function `row(w, x, k)`: a weight row times a token, two vectors whose lanes are to add."""
    add_group = make_add_group(format)
    scattered, contiguous = make_read_group(format)
    size = format.block_bytes

    @inline
    def row(w: int, x: int, k: int) -> tuple[Vector, Vector]:
        total, least = zero(F32), zero(F32x4)
        for _ in range(k // packed.GROUP):
            prefetch(w + AHEAD)
            if size > 32:
                prefetch(w + AHEAD + 64)
            total, least = add_group(contiguous(w), x, total, least)
            w += 4 * size
            x += packed.GROUP_BYTES
        left = (k % packed.GROUP) // packed.BLOCK
        if left > 0:
            total, least = add_group(scattered(w, _rest(left, size)), x, total, least)
        return total, least

    return row


@inline
def _rest(left: int, size: int) -> tuple[int, int, int, int]:
    """Offsets of the last 1 to 3 blocks; for the missing ones the last again: their activations are zeros."""
    return 0, min(1, left - 1) * size, min(2, left - 1) * size, min(2, left - 1) * size


def _make_row_2(format: BlockFormat) -> Callable[..., Any]:
    """An inline function `row(w, x0, x1, k)`: a weight row times two tokens, two vectors for each."""
    add_group = make_add_group(format)
    scattered, contiguous = make_read_group(format)
    size = format.block_bytes

    @inline
    def row(w: int, x0: int, x1: int, k: int) -> Any:
        a, b, p, q = zero(F32), zero(F32), zero(F32x4), zero(F32x4)
        groups = k // packed.GROUP
        left = (k % packed.GROUP) // packed.BLOCK
        for index in range(groups + min(left, 1)):
            prefetch(w + AHEAD)
            at = index * packed.GROUP_BYTES
            group = contiguous(w) if index < groups else scattered(w, _rest(left, size))
            a, p = add_group(group, x0 + at, a, p)
            b, q = add_group(group, x1 + at, b, q)
            w += 4 * size
        return a, b, p, q

    return row


def _make_row_4(format: BlockFormat) -> Callable[..., Any]:
    """An inline function `row(w, x0, ..., k)`: a weight row times four tokens, two vectors for each."""
    add_group = make_add_group(format)
    scattered, contiguous = make_read_group(format)
    size = format.block_bytes

    @inline
    def row(w: int, x0: int, x1: int, x2: int, x3: int, k: int) -> Any:
        a, b, c, d = zero(F32), zero(F32), zero(F32), zero(F32)
        p, q, r, s = zero(F32x4), zero(F32x4), zero(F32x4), zero(F32x4)
        groups = k // packed.GROUP
        left = (k % packed.GROUP) // packed.BLOCK
        for index in range(groups + min(left, 1)):
            prefetch(w + AHEAD)
            at = index * packed.GROUP_BYTES
            group = contiguous(w) if index < groups else scattered(w, _rest(left, size))
            a, p = add_group(group, x0 + at, a, p)
            b, q = add_group(group, x1 + at, b, q)
            c, r = add_group(group, x2 + at, c, r)
            d, s = add_group(group, x3 + at, d, s)
            w += 4 * size
        return a, b, c, d, p, q, r, s

    return row


def make_integer_rows(kind: str) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, w, x, y, residual, bias, k, x_stride, y_stride, rows)`.

    Weight rows begin to end of format `kind` times all `rows` packed rows.
    """
    format = FORMATS[kind]
    row_1, row_2, row_4 = _make_row_1(format), _make_row_2(format), _make_row_4(format)
    size = format.block_bytes
    # -offset * scale * sum(x), or + minimum * sum(x).
    factor = f32(1.0 if format.minimum else -float(format.offset))

    @inline
    def finish(total: Vector, least: Vector) -> Number:
        return sum_lanes(total) + factor * sum_lanes(least)

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
        row_bytes = k // packed.BLOCK * size
        if rows == 1:
            for index in range(begin, end):
                total, least = row_1(w + index * row_bytes, x, k)
                store_output(finish(total, least), y, residual, bias, index, 0)
            return
        if rows == 2:
            for index in range(begin, end):
                a, b, p, q = row_2(w + index * row_bytes, x, x + x_stride, k)
                store_output(finish(a, p), y, residual, bias, index, 0)
                store_output(finish(b, q), y, residual, bias, index, y_stride)
            return
        last = x + (rows - 1) * x_stride
        for index in range(begin, end):
            at = w + index * row_bytes
            for token in range(0, rows, 4):
                # Past the last token the last one is computed again, and not stored.
                x0 = x + token * x_stride
                x1, x2, x3 = (
                    min(x0 + x_stride, last),
                    min(x0 + 2 * x_stride, last),
                    min(x0 + 3 * x_stride, last),
                )
                a, b, c, d, p, q, r, s = row_4(at, x0, x1, x2, x3, k)
                to = token * y_stride
                store_output(finish(a, p), y, residual, bias, index, to)
                if token + 1 < rows:
                    store_output(finish(b, q), y, residual, bias, index, to + y_stride)
                if token + 2 < rows:
                    store_output(finish(c, r), y, residual, bias, index, to + 2 * y_stride)
                if token + 3 < rows:
                    store_output(finish(d, s), y, residual, bias, index, to + 3 * y_stride)

    return multiply
