"""Vectors of encoders, a block in each lane, and what formats do with them: rounding, bytes, halves."""

from __future__ import annotations

import math

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Vector
from graphml_cpu.layouts import encoder_lanes
from graphml_cpu.simd import (
    WIDTH,
    absolute,
    bitcast,
    convert,
    copy_sign,
    f32,
    load,
    maximum,
    minimum,
    round_even,
    select,
    splat,
    square_root,
    store,
    vector,
    zero,
)

SMALLEST = 1e-15
"""Groups without a number of this magnitude are zeros to ggml, in most searches."""
LANES = encoder_lanes(WIDTH)
F32, I32, U8, U16, F16 = (vector(element, LANES) for element in ("f32", "i32", "u8", "u16", "f16"))
F32_BYTES = LANES * 4
# A half less its last bit: added to what is just below a half it does not reach the next whole number, and
# added to a half the sum itself is rounded up to it.
_BELOW_HALF = 0.5 - 2.0**-25


@inline
def nearest(x: Vector) -> Vector:
    """The nearest whole number, halves to even, as ggml's nearest_int of what it can round."""
    return round_even(x)


@inline
def clamped(x: Vector, low: float, high: float) -> Vector:
    """Numbers no less than low and no more than high; low if they are no numbers."""
    return minimum(maximum(x, low), high)


@inline
def level(x: Vector, low: float, high: float) -> Vector:
    """The nearest of the whole numbers from low to high, as floats."""
    return clamped(nearest(x), low, high)


@inline
def as_bytes(x: Vector) -> Vector:
    """Whole numbers from 0 to 255, or their lowest byte, as bytes."""
    return convert(U8, convert(I32, x))


@inline
def store_half(to: int, x: Vector) -> Vector:
    """Two bytes, x as a half; returns what the half is."""
    half = convert(F16, x)
    bits = bitcast(U16, half)
    store(to, convert(U8, bits))
    store(to + LANES, convert(U8, bits >> 8))
    return convert(F32, half)


@inline
def sum_of_squares(x: int, count: int) -> Vector:
    """Of `count` elements, added from the first to the last."""
    total = zero(F32)
    for i in range(count):
        value = load(F32, x + i * F32_BYTES)
        total += value * value
    return total


@inline
def reciprocal(x: Vector) -> Vector:
    """1 / x; 0 where that is not finite."""
    inverse = 1.0 / x
    return select(absolute(inverse) < f32(math.inf), inverse, zero(F32))


@inline
def away_from_zero(x: Vector) -> Vector:
    """The nearest whole number, halves away from zero, as C's roundf; in 32 bits."""
    return convert(I32, x + copy_sign(splat(F32, f32(_BELOW_HALF)), x))


@inline
def largest(x: int, n: int) -> tuple[Vector, Vector]:
    """Of n vectors the value of largest magnitude, the first of equals, and its magnitude."""
    most, magnitude = zero(F32), zero(F32)
    for i in range(n):
        value = load(F32, x + i * F32_BYTES)
        size = absolute(value)
        is_larger = size > magnitude
        most, magnitude = select(is_larger, value, most), select(is_larger, size, magnitude)
    return most, magnitude


@inline
def largest_magnitude(x: int, n: int) -> Vector:
    """Of n vectors."""
    magnitude = zero(F32)
    for i in range(n):
        magnitude = maximum(absolute(load(F32, x + i * F32_BYTES)), magnitude)
    return magnitude


@inline
def largest_value(x: int, n: int) -> Vector:
    """Of n vectors; 0 where none is positive."""
    most = zero(F32)
    for i in range(n):
        most = maximum(load(F32, x + i * F32_BYTES), most)
    return most


@inline
def odd_level(x: Vector, top: float) -> Vector:
    """The level l from 0 to top of which 2 l + 1 is nearest to x, as floats."""
    return level((x - 1.0) * 0.5, 0.0, top)


@inline
def better_scale(
    sum_lx: Vector, sum_l2: Vector, scale: Vector, best: Vector
) -> tuple[Vector, Vector, Vector]:
    """Where the sums of other levels have less error: the lanes; scale and best there are those of the sums.

    sum_lx, sum_l2: of weight * level * x and weight * level^2, whose scale of the least weighted squares is
    sum_lx / sum_l2. best: by how much the scale lessens the squares, sum_lx^2 / sum_l2.
    """
    is_better = (sum_l2 > 0.0) & (sum_lx * sum_lx > best * sum_l2)
    scale = select(is_better, sum_lx / sum_l2, scale)
    return is_better, scale, select(is_better, scale * sum_lx, best)


@inline
def store_weights(x: int, weights: int, mean: Vector, n: int, to: int, weighted: bool) -> None:
    """The weights of n elements' errors: by `importance`, or the values' squares."""
    if weighted:
        importance(x, weights, mean, n, to)
    else:
        for i in range(n):
            value = load(F32, x + i * F32_BYTES)
            store(to + i * F32_BYTES, value * value)


@inline
def importance(x: int, weights: int, mean: Vector, n: int, to: int) -> Vector:
    """The weights of n elements' errors, by their importance and the mean of squares; returns their sum."""
    total = zero(F32)
    for i in range(n):
        value = load(F32, x + i * F32_BYTES)
        weight = load(F32, weights + i * F32_BYTES) * square_root(mean + value * value)
        store(to + i * F32_BYTES, weight)
        total += weight
    return total
