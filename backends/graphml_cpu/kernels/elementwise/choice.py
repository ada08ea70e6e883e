"""Elementwise kernels that choose or convert: `where`, and casts between float32 and int32.

The threads share all elements of all rows, chunk by chunk. The output may be the chosen value's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.compiler import Address, Dim, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.elementwise.operations import CHUNK, chunk_of
from graphml_cpu.kernels.share import Vector, share
from graphml_cpu.simd import (
    F32,
    I32,
    WIDTH,
    convert,
    load_f32,
    load_partial,
    maximum,
    minimum,
    select,
    splat,
    splat_like,
    store_partial,
)


@inline
def _row(base: int, row: int, repeats: int, period: int, n: int) -> int:
    """Address of the row of a broadcast operand that meets a row; period 0: none."""
    met = row // repeats
    return base + (met % period if period > 0 else met) * n * 4


def _make_part(single: bool) -> Any:
    """`part(row, i, count)`: elements i to i + count of a row, or the one number of the row."""

    @inline
    def number(row: int, i: int, count: int) -> Vector:
        return splat(F32, load_f32(row))

    @inline
    def elements(row: int, i: int, count: int) -> Vector:
        return load_partial(F32, row + i * 4, count)

    return number if single else elements


def make_where(mask_single: bool, b_single: bool) -> Callable[..., None]:
    """out = a where the mask is not 0, else b; a, out float32 [rows, n]; single: one number a row.

    Row r meets row r // repeats % period of the mask and of b; period 0: r // repeats.
    """
    mask_part, b_part = _make_part(mask_single), _make_part(b_single)
    mask_one, b_one = int(mask_single), int(b_single)

    def where(
        ith: Int, nth: Int, mask: Address, a: Address, b: Address, out: Address, n: Int, mask_repeats: Int,
        mask_period: Int, b_repeats: Int, b_period: Int, rows: Dim,
    ) -> None:  # fmt: skip
        chunks = (n + CHUNK - 1) // CHUNK
        begin, end = share(ith, nth, rows * chunks)
        for unit in range(begin, end):
            row, first, last = chunk_of(unit, chunks, n)
            chosen = _row(mask, row, mask_repeats, mask_period, 1 if mask_one else n)
            other = _row(b, row, b_repeats, b_period, 1 if b_one else n)
            for i in range(first, last, WIDTH):
                at, count = (row * n + i) * 4, last - i
                # A NaN is not equal to 0.
                y = select(
                    mask_part(chosen, i, count) == 0.0,
                    b_part(other, i, count),
                    load_partial(F32, a + at, count),
                )
                store_partial(out + at, y, count)

    return where


@inline
def _to_i32(x: Vector) -> Vector:
    """Toward zero; beyond the range its ends, 0 for NaN."""
    number = select(x == x, x, splat_like(x, 0.0))
    held = maximum(splat_like(x, -2147483648.0), minimum(splat_like(x, 2147483520.0), number))
    whole = convert(I32, held)
    return select(number >= 2147483648.0, splat_like(whole, 2147483647), whole)


@inline
def _to_f32(x: Vector) -> Vector:
    return convert(F32, x)


def make_cast(to: str) -> Callable[..., None]:
    """out = x as "i32" or "f32", of which it is the other; x, out [rows, n]."""
    function = _to_i32 if to == "i32" else _to_f32
    kind = F32 if to == "i32" else I32

    def cast(ith: Int, nth: Int, x: Address, out: Address, n: Int, rows: Dim) -> None:
        chunks = (n + CHUNK - 1) // CHUNK
        begin, end = share(ith, nth, rows * chunks)
        for unit in range(begin, end):
            row, first, last = chunk_of(unit, chunks, n)
            for i in range(first, last, WIDTH):
                at, count = (row * n + i) * 4, last - i
                store_partial(out + at, function(load_partial(kind, x + at, count)), count)

    return cast
