"""Two sets of four rows of weights that have one or two blocks left, multiplied as one set.

Lanes 4 * row + 2 * set + block of a vector hold words of blocks 0 and 1 of both sets (`interleaved_sets`),
so a half group at the end of rows takes half the dot products of a group. Each sum gets the terms it got
otherwise, in their order; the sums of blocks 2 and 3, to which nothing would be added, stay. Knows what a
`CpuFormatReader` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import packed
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, F32x16, I8x64, U8x64
from graphml_cpu.kernels.products.integer_groups import I32x16, make_operand
from graphml_cpu.kernels.products.interleaved_sets import make_load_set
from graphml_cpu.kernels.products.interleaved_tokens import (
    SCALE,
    SEEDS,
    minima_at,
    number_of_seeds,
    token_bytes,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import bitcast, fma, load, shuffle_by, shuffle_pair_by, store, to_float, vector, zero

ELEMENTS = 64
"""Weights left, at most, of rows that are multiplied so."""

_I32x2, _F32x2 = vector("i32", 2), vector("f32", 2)
_U32x16 = vector("u32", 16)
_in_all_halves = shuffle_by([lane % 2 for lane in range(16)])


def _pairs(first: tuple[int, int], second: tuple[int, int]) -> Any:
    """An operation: in each quarter two lanes, then two lanes, of a (0 to 3) or of b (16 to 19)."""
    return shuffle_pair_by([quarter + lane for quarter in range(0, 16, 4) for lane in (*first, *second)])


_joined = _pairs((0, 1), (16, 17))
_of_first, _of_second = _pairs((0, 1), (18, 19)), _pairs((2, 3), (18, 19))


def takes_half_groups(reader: CpuFormatReader) -> bool:
    """Whether rows of a format may end so."""
    return reader.read_rest is not None and reader.scales == 1 and reader.minima <= 1


@inline
def _bytes(at: int) -> Vector:
    """8 bytes of a token, in every half of a quarter: I8x64."""
    return bitcast(I8x64, _in_all_halves(load(_I32x2, at)))


@inline
def _floats(at: int) -> Vector:
    """A token's numbers for two blocks."""
    return _in_all_halves(load(_F32x2, at))


def _make_terms(reader: CpuFormatReader) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Inline functions `seed(at)`, and `add(minima, at, total) -> total` for minima times a token's sums."""
    sums_at = minima_at(reader)

    @inline
    def no_seed(at: int) -> Vector:
        return zero(I32x16)

    @inline
    def seed(at: int) -> Vector:
        return _in_all_halves(load(_I32x2, at + SEEDS))

    @inline
    def no_minima(minima: Any, at: int, total: Vector) -> Vector:
        return total

    @inline
    def with_minima(minima: Any, at: int, total: Vector) -> Vector:
        return fma(minima, _floats(at + sums_at), total)

    return seed if number_of_seeds(reader) else no_seed, with_minima if reader.minima else no_minima


def make_add_half_group(reader: CpuFormatReader) -> Callable[..., Any]:
    """An inline function `add(buffer, first, second, blocks, at, tokens, sums)`: the last ELEMENTS or less.

    As the one of `interleaved_rows` that adds a group.
    """
    load_set, operand, size = make_load_set(reader, True), make_operand(reader), token_bytes(reader)
    dot, values = operand.dot, I8x64 if operand.signed else U8x64
    seed, add_minima = _make_terms(reader)

    @inline
    def join(a: Vector, b: Vector) -> Vector:
        return bitcast(values, _joined(bitcast(_U32x16, a), bitcast(_U32x16, b)))

    @inline
    def join_half(a: Any, b: Any) -> Any:
        return join(a[0], b[0]), join(a[1], b[1]), join(a[2], b[2]), join(a[3], b[3])

    @inline
    def no_numbers(a: Any, b: Any) -> Any:
        return zero(F32x16)

    @inline
    def numbers(a: Any, b: Any) -> Any:
        return _joined(a[0], b[0])

    join_minima = numbers if reader.minima else no_numbers

    @inline
    def half(rows: Any, at: int, total: Vector) -> Vector:
        total = dot(dot(total, rows[0], _bytes(at)), rows[1], _bytes(at + 16))
        return dot(dot(total, rows[2], _bytes(at + 32)), rows[3], _bytes(at + 48))

    @inline
    def add(buffer: int, first: Any, second: Any, blocks: int, at: int, tokens: int, sums: int) -> None:
        a = load_set(buffer, first, blocks)
        b = load_set(buffer + 4 * packed.UNIT_ROW_BYTES, second, blocks)
        low, high = join_half(a[0], b[0]), join_half(a[1], b[1])
        scales, minima = numbers(a[2], b[2]), join_minima(a[3], b[3])
        for _ in range(tokens):
            # The halves of blocks apart are two sums in turns; integers are added exactly.
            whole = half(low, at, seed(at)) + half(high, at + 64, zero(I32x16))
            p, q = load(F32x16, sums), load(F32x16, sums + 64)
            total = fma(to_float(whole) * _floats(at + SCALE), scales, _joined(p, q))
            total = add_minima(minima, at, total)
            store(sums, _of_first(total, p))
            store(sums + 64, _of_second(total, q))
            at += size
            sums += 128

    return add
