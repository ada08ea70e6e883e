"""Rows of F32, F16 and BF16 weights times float32 activations, a row at a time: one token, or a few.

The weights are read once, in file order, which is all that counts while memory sets the pace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.outputs import AHEAD, store_output
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    F16,
    F32,
    WIDTH,
    bf16_to_f32,
    convert,
    fma,
    load,
    load_partial,
    prefetch,
    sum_lanes,
    vector,
    zero,
)

ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
_U16 = vector("u16", WIDTH)


def make_load_weights(kind: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Inline functions `load(at)` and `load_partial(at, count)`: W weights as F32."""

    @inline
    def load_f32(at: int) -> Vector:
        return load(F32, at)

    @inline
    def load_f32_partial(at: int, count: int) -> Vector:
        return load_partial(F32, at, count)

    @inline
    def load_f16(at: int) -> Vector:
        return convert(F32, load(F16, at))

    @inline
    def load_f16_partial(at: int, count: int) -> Vector:
        return convert(F32, load_partial(F16, at, count))

    @inline
    def load_bf16(at: int) -> Vector:
        return bf16_to_f32(load(_U16, at))

    @inline
    def load_bf16_partial(at: int, count: int) -> Vector:
        return bf16_to_f32(load_partial(_U16, at, count))

    return {
        "f32": (load_f32, load_f32_partial),
        "f16": (load_f16, load_f16_partial),
        "bf16": (load_bf16, load_bf16_partial),
    }[kind]


def make_row_1(kind: str) -> Callable[..., Any]:
    """An inline function `row(w, x, k)`: the dot product with one token, in four sums to hide the latency."""
    load_w, load_w_partial = make_load_weights(kind)
    size = ELEMENT_BYTES[kind]

    @inline
    def row(w: int, x: int, k: int) -> Vector:
        a, b, c, d = zero(F32), zero(F32), zero(F32), zero(F32)
        for _ in range(k // (4 * WIDTH)):
            prefetch(w + AHEAD)
            if 4 * WIDTH * size > 64:
                prefetch(w + AHEAD + 64)
            if 4 * WIDTH * size > 128:
                prefetch(w + AHEAD + 128)
                prefetch(w + AHEAD + 192)
            a = fma(load_w(w), load(F32, x), a)
            b = fma(load_w(w + WIDTH * size), load(F32, x + WIDTH * 4), b)
            c = fma(load_w(w + 2 * WIDTH * size), load(F32, x + 2 * WIDTH * 4), c)
            d = fma(load_w(w + 3 * WIDTH * size), load(F32, x + 3 * WIDTH * 4), d)
            w += 4 * WIDTH * size
            x += 4 * WIDTH * 4
        for i in range(0, k % (4 * WIDTH), WIDTH):
            left = k % (4 * WIDTH) - i
            a = fma(load_w_partial(w + i * size, left), load_partial(F32, x + i * 4, left), a)
        return (a + b) + (c + d)

    return row


def make_row_4(kind: str) -> Callable[..., Any]:
    """An inline function `row(w, x0, x1, x2, x3, k)`: the dot products with four tokens."""
    load_w, load_w_partial = make_load_weights(kind)
    size = ELEMENT_BYTES[kind]

    @inline
    def row(w: int, x0: int, x1: int, x2: int, x3: int, k: int) -> Any:
        a, b, c, d = zero(F32), zero(F32), zero(F32), zero(F32)
        whole = k - k % WIDTH
        for i in range(0, whole, WIDTH):
            weights = load_w(w + i * size)
            a = fma(weights, load(F32, x0 + i * 4), a)
            b = fma(weights, load(F32, x1 + i * 4), b)
            c = fma(weights, load(F32, x2 + i * 4), c)
            d = fma(weights, load(F32, x3 + i * 4), d)
        left = k - whole
        if left > 0:
            weights = load_w_partial(w + whole * size, left)
            a = fma(weights, load_partial(F32, x0 + whole * 4, left), a)
            b = fma(weights, load_partial(F32, x1 + whole * 4, left), b)
            c = fma(weights, load_partial(F32, x2 + whole * 4, left), c)
            d = fma(weights, load_partial(F32, x3 + whole * 4, left), d)
        return a, b, c, d

    return row


def make_float_rows(kind: str) -> Callable[..., Any]:
    """An inline function `multiply(begin, end, w, x, y, residual, bias, k, x_stride, y_stride, rows)`.

    Weight rows begin to end of format `kind` times all `rows` rows of activations.
    """
    row_1, row_4 = make_row_1(kind), make_row_4(kind)
    size = ELEMENT_BYTES[kind]

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
        if rows == 1:
            for index in range(begin, end):
                total = sum_lanes(row_1(w + index * k * size, x, k))
                store_output(total, y, residual, bias, index, 0)
            return
        last = x + (rows - 1) * x_stride
        for index in range(begin, end):
            at = w + index * k * size
            for token in range(0, rows, 4):
                # Past the last token the last one is computed again, and not stored.
                x0 = x + token * x_stride
                x1, x2, x3 = (
                    min(x0 + x_stride, last),
                    min(x0 + 2 * x_stride, last),
                    min(x0 + 3 * x_stride, last),
                )
                a, b, c, d = row_4(at, x0, x1, x2, x3, k)
                to = token * y_stride
                store_output(sum_lanes(a), y, residual, bias, index, to)
                if token + 1 < rows:
                    store_output(sum_lanes(b), y, residual, bias, index, to + y_stride)
                if token + 2 < rows:
                    store_output(sum_lanes(c), y, residual, bias, index, to + 2 * y_stride)
                if token + 3 < rows:
                    store_output(sum_lanes(d), y, residual, bias, index, to + 3 * y_stride)

    return multiply
