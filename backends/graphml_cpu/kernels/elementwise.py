"""Elementwise operations on rows of float32: of one tensor, of two, and gates.

Knows rows and strides; the formulas are in `graphml_cpu.kernels.formulas`. Every output may be one of the
inputs. The threads share all elements of all rows in pieces of 256 or fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Float, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formulas import BINARY, GLU, UNARY, pick
from graphml_cpu.kernels.share import Vector, share
from graphml_cpu.simd import (
    F32,
    WIDTH,
    load,
    load_f32,
    load_partial,
    maximum,
    minimum,
    splat,
    store,
    store_partial,
    tanh,
)

# Elements of one unit of work; a multiple of every vector's width.
_PIECE = 256


def make_unary(op: str) -> Callable[..., None]:
    """out = op(x), an op of `UNARY`; x and out float32 [rows, n], rows so many bytes apart."""
    function = pick(UNARY, op, "unary")

    def unary(
        ith: Int, nth: Int, x: Address, out: Address, n: Int, x_stride: Int, out_stride: Int, rows: Dim
    ) -> None:
        pieces = (n + _PIECE - 1) // _PIECE
        begin, end = share(ith, nth, rows * pieces)
        for unit in range(begin, end):
            row = unit // pieces
            first = (unit - row * pieces) * _PIECE
            source, to = x + row * x_stride, out + row * out_stride
            last = min(first + _PIECE, n)
            for i in range(first, last - last % WIDTH, WIDTH):
                store(to + i * 4, function(load(F32, source + i * 4)))
            rest = last % WIDTH
            if rest > 0:
                i = last - rest
                store_partial(to + i * 4, function(load_partial(F32, source + i * 4, rest)), rest)

    return unary


def make_pairs(function: Any) -> Any:
    """`pairs(a, b, out, first, last)`: out[first:last] of one row."""

    @inline
    def pairs(a: int, b: int, out: int, first: int, last: int) -> None:
        for i in range(first, last - last % WIDTH, WIDTH):
            store(out + i * 4, function(load(F32, a + i * 4), load(F32, b + i * 4)))
        rest = last % WIDTH
        if rest > 0:
            at = (last - rest) * 4
            v = function(load_partial(F32, a + at, rest), load_partial(F32, b + at, rest))
            store_partial(out + at, v, rest)

    return pairs


def make_binary(op: str) -> Callable[..., None]:
    """out = a op b, an op of `BINARY`; float32 [rows, n]; `b_stride` 0: one row for all of a's."""
    pairs = make_pairs(pick(BINARY, op, "binary"))

    def binary(
        ith: Int, nth: Int, a: Address, b: Address, out: Address, n: Int, a_stride: Int, b_stride: Int,
        out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        pieces = (n + _PIECE - 1) // _PIECE
        begin, end = share(ith, nth, rows * pieces)
        for unit in range(begin, end):
            row = unit // pieces
            first = (unit - row * pieces) * _PIECE
            last = min(first + _PIECE, n)
            pairs(a + row * a_stride, b + row * b_stride, out + row * out_stride, first, last)

    return binary


def make_binary_scalar(op: str) -> Callable[..., None]:
    """out = a op b, one b per row: a, out float32 [rows, n], b float32 [b_rows], over and over again."""
    function = pick(BINARY, op, "binary_scalar")

    def binary_scalar(
        ith: Int, nth: Int, a: Address, b: Address, out: Address, n: Int, a_stride: Int, b_rows: Int,
        out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        pieces = (n + _PIECE - 1) // _PIECE
        begin, end = share(ith, nth, rows * pieces)
        for unit in range(begin, end):
            row = unit // pieces
            first = (unit - row * pieces) * _PIECE
            last = min(first + _PIECE, n)
            source, to = a + row * a_stride, out + row * out_stride
            right = splat(F32, load_f32(b + row % b_rows * 4))
            for i in range(first, last - last % WIDTH, WIDTH):
                store(to + i * 4, function(load(F32, source + i * 4), right))
            rest = last % WIDTH
            if rest > 0:
                i = last - rest
                store_partial(to + i * 4, function(load_partial(F32, source + i * 4, rest), right), rest)

    return binary_scalar


def make_glu(op: str) -> Callable[..., None]:
    """out = act(gate) * up, an op of `GLU`; float32 [rows, n], rows so many bytes apart.

    A tensor that holds both halves is given as two addresses with one stride.
    """
    pairs = make_pairs(pick(GLU, op, "glu"))

    def glu(
        ith: Int, nth: Int, gate: Address, up: Address, out: Address, n: Int, gate_stride: Int, up_stride:
        Int, out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        pieces = (n + _PIECE - 1) // _PIECE
        begin, end = share(ith, nth, rows * pieces)
        for unit in range(begin, end):
            row = unit // pieces
            first = (unit - row * pieces) * _PIECE
            last = min(first + _PIECE, n)
            pairs(gate + row * gate_stride, up + row * up_stride, out + row * out_stride, first, last)

    return glu


def _make_two_numbers(function: Any) -> Any:
    """`apply(x, out, first, last, p, q)`: out[first:last] = function(x, p, q) of one row."""

    @inline
    def apply(x: int, out: int, first: int, last: int, p: Any, q: Any) -> None:
        left, right = splat(F32, p), splat(F32, q)
        for i in range(first, last - last % WIDTH, WIDTH):
            store(out + i * 4, function(load(F32, x + i * 4), left, right))
        rest = last % WIDTH
        if rest > 0:
            at = (last - rest) * 4
            store_partial(out + at, function(load_partial(F32, x + at, rest), left, right), rest)

    return apply


@inline
def _scaled(x: Vector, factor: Vector, offset: Vector) -> Vector:
    return x * factor + offset


@inline
def _clamped(x: Vector, low: Vector, high: Vector) -> Vector:
    return maximum(low, minimum(high, x))


@inline
def _softcapped(x: Vector, factor: Vector, limit: Vector) -> Vector:
    return tanh(x * factor) * limit


def make_softcap() -> Callable[..., None]:
    """out = limit * tanh(x * factor); float32 [rows, n]."""
    apply = _make_two_numbers(_softcapped)

    def softcap(
        ith: Int, nth: Int, x: Address, out: Address, n: Int, factor: Float, limit: Float, x_stride: Int,
        out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        pieces = (n + _PIECE - 1) // _PIECE
        begin, end = share(ith, nth, rows * pieces)
        for unit in range(begin, end):
            row = unit // pieces
            first = (unit - row * pieces) * _PIECE
            last = min(first + _PIECE, n)
            apply(x + row * x_stride, out + row * out_stride, first, last, factor, limit)

    return softcap


def make_scale() -> Callable[..., None]:
    """out = x * factor + offset (rounded twice); float32 [rows, n]."""
    apply = _make_two_numbers(_scaled)

    def scale(
        ith: Int, nth: Int, x: Address, out: Address, n: Int, factor: Float, offset: Float, x_stride: Int,
        out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        pieces = (n + _PIECE - 1) // _PIECE
        begin, end = share(ith, nth, rows * pieces)
        for unit in range(begin, end):
            row = unit // pieces
            first = (unit - row * pieces) * _PIECE
            last = min(first + _PIECE, n)
            apply(x + row * x_stride, out + row * out_stride, first, last, factor, offset)

    return scale


def make_clamp() -> Callable[..., None]:
    """out = x held between low and high, NaN kept; float32 [rows, n]."""
    apply = _make_two_numbers(_clamped)

    def clamp(
        ith: Int, nth: Int, x: Address, out: Address, n: Int, low: Float, high: Float, x_stride: Int,
        out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        pieces = (n + _PIECE - 1) // _PIECE
        begin, end = share(ith, nth, rows * pieces)
        for unit in range(begin, end):
            row = unit // pieces
            first = (unit - row * pieces) * _PIECE
            last = min(first + _PIECE, n)
            apply(x + row * x_stride, out + row * out_stride, first, last, low, high)

    return clamp
