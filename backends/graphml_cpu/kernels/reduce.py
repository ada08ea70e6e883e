"""Sums over rows of float32, and softmax. Knows one row at a time; a row belongs to one thread.

Sums run in float32 over 4 * W lanes (W lanes of a vector) and then down a fixed tree, so that a row's result
depends on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Number, Vector, share
from graphml_cpu.kernels.sums import sum_row
from graphml_cpu.simd import (
    F32,
    WIDTH,
    exp,
    f32,
    load,
    load_partial,
    max_lanes,
    maximum,
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
def _divide(x: int, n: int, divisor: float) -> None:
    whole = n - n % WIDTH
    for i in range(0, whole, WIDTH):
        store(x + i * 4, load(F32, x + i * 4) / divisor)
    if whole < n:
        at = x + whole * 4
        store_partial(at, load_partial(F32, at, n - whole) / divisor, n - whole)


def make_softmax() -> Callable[..., None]:
    """out = exp(x - max(x)) / its sum; float32 [rows, n], rows so many bytes apart; out may be x.

    A row with a NaN or +inf, or of -inf alone, becomes NaN.
    """

    def softmax(
        ith: Int, nth: Int, x: Address, out: Address, n: Int, x_stride: Int, out_stride: Int, rows: Dim
    ) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            source, to = x + row * x_stride, out + row * out_stride
            _exponentials(source, to, n, _largest(source, n))
            _divide(to, n, sum_row(to, n))

    return softmax


def make_sum_rows() -> Callable[..., None]:
    """out[row] = the sum of x[row]; x float32 [rows, n], rows `x_stride` bytes apart; out float32 [rows]."""

    def sum_rows(ith: Int, nth: Int, x: Address, out: Address, n: Int, x_stride: Int, rows: Dim) -> None:
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            store_f32(out + row * 4, sum_row(x + row * x_stride, n))

    return sum_rows
