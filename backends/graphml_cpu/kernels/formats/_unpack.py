"""Moves that the decoders share: bits, nibbles and codebook rows to vectors, vectors of integers to float32.

Vectors here have 16 or 32 lanes whatever the level: LLVM splits them into registers. Knows no format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import (
    absolute,
    any_lane,
    bitcast,
    concatenate,
    convert,
    extract,
    f32,
    high_half,
    load,
    load_f16,
    load_f32,
    low_half,
    max_lanes,
    min_lanes,
    minimum,
    ramp,
    select,
    splat,
    store,
    vector,
    zero,
)

F32x8, F32x16, F32x32 = vector("f32", 8), vector("f32", 16), vector("f32", 32)
I8x4, I8x8, I8x16, I8x32 = vector("i8", 4), vector("i8", 8), vector("i8", 16), vector("i8", 32)
U8x4, U8x8, U8x16, U8x32 = vector("u8", 4), vector("u8", 8), vector("u8", 16), vector("u8", 32)
I32x32 = vector("i32", 32)
_MASK32 = vector("i1", 32)
_WORD = vector("u32", 1)
# The largest float32 whose inverse is infinite.
_TOO_SMALL = 2.0**-128


def block_decoder(n_bytes: int, decoded: Callable[[int, int, Number], Vector]) -> Any:
    """An inline function `decode(src, dst, k)` of blocks of 256 in `n_bytes`, which begin with d as a half.

    decoded(at, group, d): the 32 numbers, float32, of one of the eight groups of the block at `at`.
    """

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 256):
            at, to = src + block * n_bytes, dst + block * 1024
            d = load_f16(at)
            for group in range(8):
                store(to + group * 128, decoded(at, group, d))

    return decode


@inline
def floats(numbers: Vector) -> Vector:
    """32 integers as float32."""
    return convert(F32x32, numbers)


@inline
def signed(numbers: Vector) -> Vector:
    """32 unsigned bytes as signed ones."""
    return bitcast(I8x32, numbers)


@inline
def nibbles(packed: Vector) -> Vector:
    """The low nibbles of all bytes, then the high ones: twice as many lanes."""
    return concatenate(packed & 15, packed >> 4)


@inline
def bits(address: int) -> Vector:
    """The 32 bits at an address as a mask, the lowest bit first."""
    return bitcast(_MASK32, load(_WORD, address))


@inline
def fifth_bits(numbers: Vector) -> Vector:
    """Bit 4 of 32 integers from 0 to 31, the first number's the lowest: one u32."""
    return bitcast(_WORD, numbers > 15)


@inline
def low_and_high(numbers: Vector) -> Vector:
    """The low four bits of 32 integers, int32, in 16 bytes: the first half of them in the low nibbles."""
    packed = convert(U8x32, numbers & 15)
    return low_half(packed) | (high_half(packed) << 4)


@inline
def first_lane(found: Vector) -> Number:
    """The number of the first of 32 lanes that is set."""
    return min_lanes(select(found, ramp(I32x32), splat(I32x32, 32)))


@inline
def largest(values: Vector, address: int) -> Number:
    """Of 32 float32 values, which stand at an address, that of largest magnitude, the first of equals.

    Of zeros it is 0, even where they are negative ones.
    """
    magnitude = absolute(values)
    return load_f32(address + first_lane(magnitude == max_lanes(magnitude)) * 4) + f32(0.0)


@inline
def smallest(values: Vector, address: int) -> Number:
    """Of 32 float32 values, which stand at an address, the smallest, the first of equals (0 and -0 are)."""
    return load_f32(address + first_lane(values == min_lanes(values)) * 4)


@inline
def is_finite(values: Vector) -> bool:
    """Whether no lane of float32 values is a NaN or an infinity: those less themselves are not 0."""
    return not any_lane(values - values != 0.0)


@inline
def inverse(scale: Number) -> Number:
    """1 / scale, and 0 where that is infinite: such a block is all zero to its precision."""
    magnitude = absolute(scale)
    return f32(1.0) / scale if magnitude > _TOO_SMALL else f32(0.0)


@inline
def around_zero(values: Vector, address: int, half: Number) -> tuple[Number, Vector]:
    """Scale and numbers, 0 to 2 half - 1, of 32 values at an address: that of largest magnitude becomes 0.

    x = scale (number - half). A NaN as scale where a value is none, or infinite.
    """
    scale: Number = f32(float("nan"))
    if is_finite(values):
        scale = largest(values, address) / -half
    else:
        values = zero(F32x32)
    # Not below 0: a value is at most the largest, so at least -half scales.
    numbers = convert(I32x32, values * inverse(scale) + (half + f32(0.5)))
    return scale, minimum(numbers, convert(I32x32, splat(F32x32, half + half - f32(1.0))))


@inline
def from_least(values: Vector, address: int, most: Number) -> tuple[Number, Number, Vector]:
    """Scale, smallest value and numbers, 0 to most, of 32 values at an address.

    x = scale number + least. A NaN as scale where a value is none, or infinite.
    """
    scale: Number = f32(float("nan"))
    least: Number = f32(0.0)
    if is_finite(values):
        least = smallest(values, address)
        scale = (max_lanes(values) - least) / most
    else:
        values = zero(F32x32)
    # Not below 0: nothing is below the smallest.
    numbers = convert(I32x32, (values - least) * inverse(scale) + f32(0.5))
    return scale, least, minimum(numbers, convert(I32x32, splat(F32x32, most)))


@inline
def pair(values: Vector, lane: int) -> Vector:
    """Lane `lane` of float32 values 16 times, then the next lane 16 times."""
    return concatenate(splat(F32x16, extract(values, lane)), splat(F32x16, extract(values, lane + 1)))


@inline
def pair_of(first: Number, second: Number) -> Vector:
    """A float32 16 times, then another 16 times."""
    return concatenate(splat(F32x16, first), splat(F32x16, second))


@inline
def rows_of_8(table: int, a: int, b: int, c: int, d: int) -> Vector:
    """Four rows of a table int8 [any, 8], one after the other: 32 lanes."""
    left = concatenate(load(I8x8, table + a * 8), load(I8x8, table + b * 8))
    right = concatenate(load(I8x8, table + c * 8), load(I8x8, table + d * 8))
    return concatenate(left, right)


@inline
def rows_of_4(table: int, a: int, b: int, c: int, d: int) -> Vector:
    """Four rows of a table int8 [any, 4], one after the other: 16 lanes."""
    left = concatenate(load(I8x4, table + a * 4), load(I8x4, table + b * 4))
    right = concatenate(load(I8x4, table + c * 4), load(I8x4, table + d * 4))
    return concatenate(left, right)
