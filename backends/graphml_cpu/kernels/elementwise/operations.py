"""Elementwise operations on rows of float32: of one tensor, of two, and gates.

Knows rows and strides; the formulas are in `elementwise.formulas`. Every output may be one of the
inputs. The threads share all elements of all rows in chunks of 256 or fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Float, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.elementwise.formulas import BINARY, GLU, UNARY, pick
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
CHUNK = 256


@inline
def chunk_of(unit: int, chunks: int, n: int) -> tuple[int, int, int]:
    """The row of a unit of work, and the first and the last + 1 of its elements."""
    row = unit // chunks
    first = (unit - row * chunks) * CHUNK
    return row, first, min(first + CHUNK, n)


def _make_singles(function: Any) -> Any:
    """`singles(x, out, first, last, more)`: out[first:last] = function(x, *more) of one row."""

    @inline
    def singles(x: int, out: int, first: int, last: int, more: Any) -> None:
        for i in range(first, last - last % WIDTH, WIDTH):
            store(out + i * 4, function(load(F32, x + i * 4), *more))
        rest = last % WIDTH
        if rest > 0:
            at = (last - rest) * 4
            store_partial(out + at, function(load_partial(F32, x + at, rest), *more), rest)

    return singles


def make_unary(op: str) -> Callable[..., None]:
    """out = op(x), an op of `UNARY`; x and out float32 [rows, n], rows so many bytes apart."""
    singles = _make_singles(pick(UNARY, op, "unary"))

    def unary(
        ith: Int, nth: Int, x: Address, out: Address, n: Int, x_stride: Int, out_stride: Int, rows: Dim
    ) -> None:
        chunks = (n + CHUNK - 1) // CHUNK
        begin, end = share(ith, nth, rows * chunks)
        for unit in range(begin, end):
            row, first, last = chunk_of(unit, chunks, n)
            singles(x + row * x_stride, out + row * out_stride, first, last, ())

    return unary


@inline
def _scaled(x: Vector, factor: Vector, offset: Vector) -> Vector:
    return x * factor + offset


@inline
def _clamped(x: Vector, low: Vector, high: Vector) -> Vector:
    return maximum(low, minimum(high, x))


@inline
def _softcapped(x: Vector, factor: Vector, limit: Vector) -> Vector:
    return tanh(x * factor) * limit


_OF_TWO_NUMBERS = {"scale": _scaled, "clamp": _clamped, "softcap": _softcapped}


def make_of_two_numbers(op: str) -> Callable[..., None]:
    """out = op(x, p, q), float32 [rows, n], one p and q for all.

    scale: x * p + q, rounded twice. clamp: x held between p and q, NaN kept. softcap: q * tanh(x * p).
    """
    singles = _make_singles(pick(_OF_TWO_NUMBERS, op, "of_two_numbers"))

    def of_two_numbers(
        ith: Int, nth: Int, x: Address, out: Address, n: Int, p: Float, q: Float, x_stride: Int,
        out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        chunks = (n + CHUNK - 1) // CHUNK
        begin, end = share(ith, nth, rows * chunks)
        for unit in range(begin, end):
            row, first, last = chunk_of(unit, chunks, n)
            numbers = splat(F32, p), splat(F32, q)
            singles(x + row * x_stride, out + row * out_stride, first, last, numbers)

    return of_two_numbers


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
    return _make_of_two(make_pairs(pick(BINARY, op, "binary")))


def _make_of_two(pairs: Any) -> Callable[..., None]:
    def of_two(
        ith: Int, nth: Int, a: Address, b: Address, out: Address, n: Int, a_stride: Int, b_stride: Int,
        out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        chunks = (n + CHUNK - 1) // CHUNK
        begin, end = share(ith, nth, rows * chunks)
        for unit in range(begin, end):
            row, first, last = chunk_of(unit, chunks, n)
            pairs(a + row * a_stride, b + row * b_stride, out + row * out_stride, first, last)

    return of_two


def make_binary_scalar(op: str) -> Callable[..., None]:
    """out = a op b, one b per row: a, out float32 [rows, n], b float32 [b_rows], over and over again."""
    singles = _make_singles(pick(BINARY, op, "binary_scalar"))

    def binary_scalar(
        ith: Int, nth: Int, a: Address, b: Address, out: Address, n: Int, a_stride: Int, b_rows: Int,
        out_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        chunks = (n + CHUNK - 1) // CHUNK
        begin, end = share(ith, nth, rows * chunks)
        for unit in range(begin, end):
            row, first, last = chunk_of(unit, chunks, n)
            right = splat(F32, load_f32(b + row % b_rows * 4))
            singles(a + row * a_stride, out + row * out_stride, first, last, (right,))

    return binary_scalar


def make_glu(op: str) -> Callable[..., None]:
    """out = act(gate) * up, an op of `GLU`; float32 [rows, n], rows so many bytes apart.

    A tensor that holds both halves is given as two addresses with one stride. a: the gate; b: up.
    """
    return _make_of_two(make_pairs(pick(GLU, op, "glu")))
