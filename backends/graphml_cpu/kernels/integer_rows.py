"""Rows of Q4_0, Q4_1 and Q8_0 weights times packed activations, a row at a time: one token, or a few.

The weights are read once, in file order, which is all that counts while memory sets the pace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import packed
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.integer_blocks import FORMATS, BlockFormat, make_add_group
from graphml_cpu.kernels.outputs import store_output
from graphml_cpu.kernels.share import Number
from graphml_cpu.simd import F32, f32, prefetch_once, sum_lanes, vector, zero

F32x4 = vector("f32", 4)
# How far ahead of its use a weight row is fetched; the processor's own prefetching stops at page ends.
_AHEAD = 4096


def _make_row(format: BlockFormat, tokens: int) -> Callable[..., Any]:
    """An inline function `row(w, xs, k)`: per token (a tuple) the sum vector and the minimum's vector."""
    add_group = make_add_group(format, tokens)
    size = format.block_bytes
    group_bytes = 4 * size

    @inline
    def next_groups_1(xs: Any) -> Any:
        return (xs[0] + packed.GROUP_BYTES,)

    @inline
    def next_groups_4(xs: Any) -> Any:
        return (
            xs[0] + packed.GROUP_BYTES,
            xs[1] + packed.GROUP_BYTES,
            xs[2] + packed.GROUP_BYTES,
            xs[3] + packed.GROUP_BYTES,
        )

    next_groups = next_groups_1 if tokens == 1 else next_groups_4

    @inline
    def row(w: int, xs: Any, k: int, sums: Any, minima: Any) -> Any:
        for _ in range(k // packed.GROUP):
            prefetch_once(w + _AHEAD)
            sums, minima = add_group(w, (0, size, 2 * size, 3 * size), xs, sums, minima)
            w += group_bytes
            xs = next_groups(xs)
        left = (k % packed.GROUP) // packed.BLOCK
        if left > 0:
            # Missing blocks are replaced by the last one: their activations are packed as zeros.
            second = min(1, left - 1) * size
            third = min(2, left - 1) * size
            sums, minima = add_group(w, (0, second, third, third), xs, sums, minima)
        return sums, minima

    return row


def make_integer_rows(kind: str) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, w, x, y, residual, bias, n, k, x_stride, y_stride, rows)`.

    Weight rows begin to end (of n) of format `kind` times all `rows` packed rows.
    """
    format = FORMATS[kind]
    row_1, row_4 = _make_row(format, 1), _make_row(format, 4)
    # -offset * scale * sum(x), or + minimum * sum(x).
    factor = f32(1.0 if format.minimum else -float(format.offset))

    @inline
    def finish(total: Any, least: Any) -> Number:
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
        row_bytes = k // packed.BLOCK * format_bytes
        z, q = zero(F32), zero(F32x4)
        if rows == 1:
            for index in range(begin, end):
                s, m = row_1(w + index * row_bytes, (x,), k, (z,), (q,))
                store_output(finish(s[0], m[0]), y, residual, bias, index, 0)
            return
        last = (rows - 1) * x_stride
        for index in range(begin, end):
            at = w + index * row_bytes
            for token in range(0, rows, 4):
                # Past the last token the last one is computed again, and not stored.
                first = x + token * x_stride
                xs = (
                    first,
                    min(first + x_stride, x + last),
                    min(first + 2 * x_stride, x + last),
                    min(first + 3 * x_stride, x + last),
                )
                s, m = row_4(at, xs, k, (z, z, z, z), (q, q, q, q))
                to = token * y_stride
                store_output(finish(s[0], m[0]), y, residual, bias, index, to)
                if token + 1 < rows:
                    store_output(finish(s[1], m[1]), y, residual, bias, index, to + y_stride)
                if token + 2 < rows:
                    store_output(finish(s[2], m[2]), y, residual, bias, index, to + 2 * y_stride)
                if token + 3 < rows:
                    store_output(finish(s[3], m[3]), y, residual, bias, index, to + 3 * y_stride)

    format_bytes = format.block_bytes
    return multiply
