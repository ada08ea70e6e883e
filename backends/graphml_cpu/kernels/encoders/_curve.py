"""The search of groups of 32 whose levels are IQ4_NL's curve: IQ4_NL and IQ4_XS have it.

Of several scales that of the least weighted squares for the levels that are nearest then.
"""

from __future__ import annotations

import math

import graphml_quant.iq4_nl as curve

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import (
    F32,
    F32_BYTES,
    I32,
    LANES,
    SMALLEST,
    U8,
    better_scale,
    largest,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, f32, float_lookup, load, select, splat, store, zero

SIZE = 32
_LEVELS = tuple(map(float, curve.LEVELS))
_MIDPOINTS = (*map(float, curve.MIDPOINTS), math.inf)
_MIDDLE, _LOWEST = _MIDPOINTS[7], _LEVELS[0]
_level, _midpoint = float_lookup(_LEVELS), float_lookup(_MIDPOINTS)
_TRIES = 7


@inline
def _index(x: Vector) -> Vector:
    """The nearest level's index, of two as near the upper one's; by bisection."""
    index = select(x >= _MIDDLE, splat(I32, 8), zero(I32))
    index = select(x >= _midpoint(index + 3), index + 4, index)
    index = select(x >= _midpoint(index + 1), index + 2, index)
    return select(x >= _midpoint(index), index + 1, index)


@inline
def _sums(x: int, weights: int, inverse: Vector) -> tuple[Vector, Vector]:
    sum_lx, sum_l2 = zero(F32), zero(F32)
    for i in range(SIZE):
        value = load(F32, x + i * F32_BYTES)
        number = _level(_index(inverse * value))
        weighted = load(F32, weights + i * F32_BYTES) * number
        sum_lx += weighted * value
        sum_l2 += weighted * number
    return sum_lx, sum_l2


@inline
def search(x: int, weights: int) -> Vector:
    """The scale; 0 of groups that are zero to ggml's precision."""
    most, magnitude = largest(x, SIZE)
    is_zero = magnitude < f32(SMALLEST)
    most = select(is_zero, splat(F32, 1.0), most)
    sum_lx, sum_l2 = _sums(x, weights, 1.0 / (-most / _LOWEST))
    scale = select(sum_l2 > 0.0, sum_lx / sum_l2, zero(F32))
    best = scale * sum_lx
    for tried in range(-_TRIES, _TRIES + 1):
        sum_lx, sum_l2 = _sums(x, weights, splat(F32, f32(tried) + f32(_LOWEST)) / most)
        _, scale, best = better_scale(sum_lx, sum_l2, scale, best)
    return select(is_zero, zero(F32), scale)


@inline
def store_indices(x: int, inverse: Vector, to: int) -> None:
    """The bytes of a group's indices."""
    for i in range(SIZE):
        store(to + i * LANES, convert(U8, _index(inverse * load(F32, x + i * F32_BYTES))))
