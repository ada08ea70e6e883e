"""Normalisations of rows of float32: RMS, mean and variance, L2; with weight and bias.

Knows one row at a time: its sums, then `write_normed`. Rows are shared among the threads, and a row belongs
to one thread: a single row (decoding) is done by one of them, or by each for itself where the caller runs
the kernel as thread 0 of 1 everywhere.

Sums run in float32 over 4 * W lanes (W lanes of a vector), each lane taking n / (4 * W) terms: the relative
error of an output stays below 1e-6 for rows up to 16384 (held by the tests against float64).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Float, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.reductions.sums import sum_row
from graphml_cpu.kernels.share import Number, Vector, share
from graphml_cpu.kernels.vector_rows import make_write_row
from graphml_cpu.simd import (
    F32,
    WIDTH,
    f32,
    fma,
    load,
    load_partial,
    ramp,
    select,
    square_root,
    sum_lanes,
    zero,
)

_STEP = WIDTH * 4  # bytes of one vector


@inline
def _sum_squares(x: int, n: int) -> Number:
    """The sum of x squared."""
    a, b, c, d = zero(F32), zero(F32), zero(F32), zero(F32)
    whole = n - n % (4 * WIDTH)
    for i in range(0, whole, 4 * WIDTH):
        at = x + i * 4
        v, w = load(F32, at), load(F32, at + _STEP)
        a, b = fma(v, v, a), fma(w, w, b)
        v, w = load(F32, at + 2 * _STEP), load(F32, at + 3 * _STEP)
        c, d = fma(v, v, c), fma(w, w, d)
    for i in range(whole, n, WIDTH):
        v = load_partial(F32, x + i * 4, n - i)
        a = fma(v, v, a)
    return sum_lanes((a + b) + (c + d))


@inline
def _sum_squares_about(x: int, n: int, mean: float) -> Number:
    """The sum of (x - mean) squared."""
    a, b = zero(F32), zero(F32)
    whole = n - n % (2 * WIDTH)
    for i in range(0, whole, 2 * WIDTH):
        v, w = load(F32, x + i * 4) - mean, load(F32, x + i * 4 + _STEP) - mean
        a, b = fma(v, v, a), fma(w, w, b)
    for i in range(whole, n, WIDTH):
        v = load_partial(F32, x + i * 4, n - i) - mean
        v = select(ramp(F32) < f32(n - i), v, zero(F32))  # the lanes past the end held -mean
        a = fma(v, v, a)
    return sum_lanes(a + b)


def _make_normed(read: Callable[..., Any]) -> Callable[..., Any]:
    """(x - mean) * factor * weight + bias of one row; a weight or bias at address 0 is left out."""

    @inline
    def normed(at: int, count: int, x: int, weight: int, bias: int, mean: float, factor: float) -> Vector:
        v = (read(F32, x + at, count) - mean) * factor
        if weight != 0:
            v = v * read(F32, weight + at, count)
        if bias != 0:
            v = v + read(F32, bias + at, count)
        return v

    return normed


write_normed = make_write_row(_make_normed)


@inline
def rms_factor(x: int, n: int, eps: float) -> Number:
    """1 / sqrt(mean of squares + eps) of one row."""
    return f32(1.0) / square_root(_sum_squares(x, n) / f32(n) + eps)


def make_rms_norm() -> Callable[..., None]:
    """out = x / sqrt(mean(x * x) + eps) * weight + bias; `weight` and `bias` are float32 [n] or address 0.

    x and out: float32 [rows, n], rows `x_stride` and `out_stride` bytes apart; out may be x.
    """

    def rms_norm(
        ith: Int, nth: Int, x: Address, weight: Address, bias: Address, out: Address, n: Int, eps: Float,
        x_stride: Int, out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            at = x + row * x_stride
            write_normed(out + row * out_stride, n, at, weight, bias, f32(0.0), rms_factor(at, n, eps))

    return rms_norm


def make_layer_norm() -> Callable[..., None]:
    """out = (x - mean) / sqrt(variance + eps) * weight + bias; parameters as in `rms_norm`."""

    def layer_norm(
        ith: Int, nth: Int, x: Address, weight: Address, bias: Address, out: Address, n: Int, eps: Float,
        x_stride: Int, out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            at = x + row * x_stride
            mean = sum_row(at, n) / f32(n)
            variance = _sum_squares_about(at, n, mean) / f32(n)
            factor = f32(1.0) / square_root(variance + eps)
            write_normed(out + row * out_stride, n, at, weight, bias, mean, factor)

    return layer_norm


def make_l2_norm() -> Callable[..., None]:
    """out = x / max(sqrt(sum(x * x)), eps), as ggml has it; float32 [rows, n]; out may be x."""

    def l2_norm(
        ith: Int, nth: Int, x: Address, out: Address, n: Int, eps: Float, x_stride: Int, out_stride: Int,
        rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            at = x + row * x_stride
            factor = f32(1.0) / max(square_root(_sum_squares(at, n)), eps)
            write_normed(out + row * out_stride, n, at, 0, 0, f32(0.0), factor)

    return l2_norm
