"""Sums, extremes and running sums of rows of float32, and softmax.

A row belongs to one thread; a long one is shared chunk by chunk, but for running sums.

Sums run in float32 over 4 * W lanes (W lanes of a vector) and then down a fixed tree, so that a row's result
depends on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.elementwise.formulas import largest, smallest
from graphml_cpu.kernels.reductions.sums import sum_row
from graphml_cpu.kernels.share import Number, Vector, share
from graphml_cpu.layouts import ROW_CHUNK
from graphml_cpu.simd import (
    F32,
    WIDTH,
    any_lane,
    exp,
    extract,
    f32,
    load,
    load_f32,
    load_partial,
    max_lanes,
    maximum,
    min_lanes,
    ramp,
    select,
    splat,
    store,
    store_f32,
    store_partial,
)


@inline
def _only(v: Vector, count: int, other: float) -> Vector:
    """The first `count` lanes of v, `other` in the rest."""
    return select(ramp(F32) < f32(count), v, splat(F32, other))


@inline
def _largest(x: int, n: int) -> Number:
    top = splat(F32, -math.inf)
    whole = n - n % WIDTH
    for i in range(0, whole, WIDTH):
        top = maximum(top, load(F32, x + i * 4))
    if whole < n:
        top = maximum(top, _only(load_partial(F32, x + whole * 4, n - whole), n - whole, -math.inf))
    return max_lanes(top)


@inline
def _exponentials(x: int, out: int, n: int, top: float) -> None:
    """out = exp(x - top)."""
    whole = n - n % WIDTH
    for i in range(0, whole, WIDTH):
        store(out + i * 4, exp(load(F32, x + i * 4) - top))
    if whole < n:
        at = whole * 4
        store_partial(out + at, exp(load_partial(F32, x + at, n - whole) - top), n - whole)


@inline
def _divide(x: int, n: int, divisor: float, factor: float) -> None:
    """x = x * factor / divisor."""
    whole = n - n % WIDTH
    for i in range(0, whole, WIDTH):
        store(x + i * 4, load(F32, x + i * 4) * factor / divisor)
    if whole < n:
        at = x + whole * 4
        store_partial(at, load_partial(F32, at, n - whole) * factor / divisor, n - whole)


@inline
def softmax_row(x: int, out: int, n: int) -> None:
    """out = exp(x - max(x)) / its sum, of one row; out may be x."""
    _exponentials(x, out, n, _largest(x, n))
    _divide(out, n, sum_row(out, n), f32(1.0))


def make_softmax() -> Callable[..., None]:
    """out = exp(x - max(x)) / its sum; float32 [rows, n], rows so many bytes apart; out may be x.

    A row with a NaN or +inf, or of -inf alone, becomes NaN.
    """

    def softmax(
        ith: Int, nth: Int, x: Address, out: Address, n: Int, x_stride: Int, out_stride: Int, rows: Dim
    ) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            softmax_row(x + row * x_stride, out + row * out_stride, n)

    return softmax


def _make_extreme(op: str) -> Any:
    """`extreme(x, n)`: the largest or smallest number of a row, NaN if there is one."""
    pick = largest if op == "max_rows" else smallest
    lanes = max_lanes if op == "max_rows" else min_lanes
    other = -math.inf if op == "max_rows" else math.inf

    @inline
    def extreme(x: int, n: int) -> Number:
        top = splat(F32, other)
        for i in range(0, n, WIDTH):
            top = pick(top, _only(load_partial(F32, x + i * 4, n - i), n - i, other))
        return f32(math.nan) if any_lane(top != top) else lanes(top)

    return extreme


def _of_row(op: str) -> Any:
    return sum_row if op == "sum_rows" else _make_extreme(op)


def make_reduce_rows(op: str) -> Callable[..., None]:
    """out[row] = the sum, the largest or the smallest number of x[row], by the op's name.

    x float32 [rows, n], rows `x_stride` bytes apart; out float32 [rows].
    """
    of_row = _of_row(op)

    def reduce_rows(ith: Int, nth: Int, x: Address, out: Address, n: Int, x_stride: Int, rows: Dim) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            store_f32(out + row * 4, of_row(x + row * x_stride, n))

    return reduce_rows


def make_reduce_chunks(op: str) -> Callable[..., None]:
    """partial[row, chunk] = the same of a chunk of x[row], chunks of `layouts.ROW_CHUNK`.

    partial float32 [rows, chunks], of which `reduce_rows` makes the results.
    """
    of_row = _of_row(op)

    def reduce_chunks(
        ith: Int, nth: Int, x: Address, partial: Address, n: Int, x_stride: Int, rows: Dim
    ) -> None:
        chunks = (n + ROW_CHUNK - 1) // ROW_CHUNK
        begin, end = share(ith, nth, rows * chunks)
        for unit in range(begin, end):
            first = unit % chunks * ROW_CHUNK
            at = x + unit // chunks * x_stride + first * 4
            store_f32(partial + unit * 4, of_row(at, min(ROW_CHUNK, n - first)))

    return reduce_chunks


def make_cumsum() -> Callable[..., None]:
    """out[row, i] = x[row, 0] + ... + x[row, i], added in float64; float32 [rows, n]; out may be x."""

    def cumsum(
        ith: Int, nth: Int, x: Address, out: Address, n: Int, x_stride: Int, out_stride: Int, rows: Dim
    ) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            total = 0.0
            for i in range(n):
                total += load_f32(x + row * x_stride + i * 4)
                store_f32(out + row * out_stride + i * 4, f32(total))

    return cumsum


def make_softmax_chunks() -> Callable[..., None]:
    """out = exp(x - top), partial[row, chunk] = (top, the sum of these); top is the largest of a chunk.

    x and out as in `softmax`; chunks of `layouts.ROW_CHUNK`; partial float32 [rows, chunks, 2].
    """

    def softmax_chunks(
        ith: Int, nth: Int, x: Address, partial: Address, out: Address, n: Int, x_stride: Int,
        out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        chunks = (n + ROW_CHUNK - 1) // ROW_CHUNK
        begin, end = share(ith, nth, rows * chunks)
        for unit in range(begin, end):
            row, first = unit // chunks, unit % chunks * ROW_CHUNK
            count = min(ROW_CHUNK, n - first)
            source, to = x + row * x_stride + first * 4, out + row * out_stride + first * 4
            top = _largest(source, count)
            # A chunk of -inf alone gives zeros.
            _exponentials(source, to, count, top if top > f32(-math.inf) else f32(0.0))
            store_f32(partial + unit * 8, top)
            store_f32(partial + unit * 8 + 4, sum_row(to, count))

    return softmax_chunks


@inline
def _exp_of(x: Number) -> Number:
    return extract(exp(splat(F32, x)), 0)


@inline
def _top_of_chunks(partial: int, chunks: int) -> Number:
    top = load_f32(partial)
    for at in range(partial + 8, partial + chunks * 8, 8):
        top = max(top, load_f32(at))
    return top


@inline
def _total_of_chunks(partial: int, chunks: int, top: Number) -> Number:
    total = f32(0.0)
    for at in range(partial, partial + chunks * 8, 8):
        total += load_f32(at + 4) * _exp_of(load_f32(at) - top)
    return total


def make_softmax_of_chunks() -> Callable[..., None]:
    """out = softmax of the rows of which `softmax_chunks` left the exponentials in out."""

    def softmax_of_chunks(
        ith: Int, nth: Int, partial: Address, out: Address, n: Int, out_stride: Int, rows: Dim
    ) -> None:
        chunks = (n + ROW_CHUNK - 1) // ROW_CHUNK
        begin, end = share(ith, nth, rows * chunks)
        for row in range(begin // chunks, (end + chunks - 1) // chunks):
            tops = partial + row * chunks * 8
            top = _top_of_chunks(tops, chunks)
            total = _total_of_chunks(tops, chunks, top)
            for unit in range(max(begin, row * chunks), min(end, (row + 1) * chunks)):
                first = (unit - row * chunks) * ROW_CHUNK
                smaller = _exp_of(load_f32(partial + unit * 8) - top)
                _divide(out + row * out_stride + first * 4, min(ROW_CHUNK, n - first), total, smaller)

    return softmax_of_chunks
