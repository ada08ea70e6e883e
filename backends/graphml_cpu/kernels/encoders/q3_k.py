"""Q3_K: 16 groups of 16 with a signed scale of 6 bits, levels of 3 bits."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders import _scales
from graphml_cpu.kernels.encoders._lanes import (
    F32,
    F32_BYTES,
    LANES,
    U8,
    as_bytes,
    importance,
    largest,
    level,
    store_half,
    sum_of_squares,
)
from graphml_cpu.kernels.encoders._packing import pack_bit, pack_quarters, pack_six_bits
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import load, select, splat, store, zero

HALVES = (108,)
_GROUPS, _SIZE, _HALF, _HALF_SCALE = 16, 16, 4, 32
_HIGH, _Q, _SCALES, _D = 0, 32, 96, 108
# What scratch holds: three numbers of each group, weights, and the levels of a group and of all.
_SCALE, _SUM, _SCALE_LEVEL, _WEIGHTS, _TRIED = (place * _GROUPS * F32_BYTES for place in range(5))
_LEVELS = _TRIED + _SIZE * F32_BYTES


@inline
def _rounded_scales(values: int, levels: int) -> Vector:
    """Levels of a scale of the value of largest magnitude, which becomes -32; returns the scale."""
    most, magnitude = largest(values, _GROUPS)
    inverse = select(magnitude > 0.0, float(-_HALF_SCALE) / most, zero(F32))
    for group in range(_GROUPS):
        value = load(F32, values + group * F32_BYTES)
        number = level(inverse * value, float(-_HALF_SCALE), float(_HALF_SCALE - 1))
        stored = select(magnitude > 0.0, number + float(_HALF_SCALE), zero(F32))
        store(levels + group * F32_BYTES, stored)
    return select(magnitude > 0.0, 1.0 / inverse, zero(F32))


@inline
def _store_scales(levels: int, scratch: int, out: int) -> None:
    """12 bytes: nibbles, then upper bits."""
    for group in range(_GROUPS):
        store(scratch + group * LANES, as_bytes(load(F32, levels + group * F32_BYTES)))
    pack_six_bits(scratch, 4, out, out + 8 * LANES)


@inline
def _store_levels(x: int, scale: Vector, scratch: int, out: int) -> None:
    """The levels for the scales that blocks are decoded with: two bits in one place, the third in another."""
    for group in range(_GROUPS):
        d = scale * (load(F32, scratch + _SCALE_LEVEL + group * F32_BYTES) - float(_HALF_SCALE))
        is_zero = d == 0.0  # the levels of the search stay
        divisor = select(is_zero, splat(F32, 1.0), d)
        for i in range(_SIZE):
            at = group * _SIZE + i
            number = level(load(F32, x + at * F32_BYTES) / divisor, float(-_HALF), float(_HALF - 1))
            searched = load(U8, scratch + _LEVELS + at * LANES)
            number = select(is_zero, searched, as_bytes(number + float(_HALF)))
            store(scratch + _LEVELS + at * LANES, number)
    pack_bit(scratch + _LEVELS, 2, out + _HIGH * LANES)
    pack_quarters(scratch + _LEVELS, out + _Q * LANES)


def _make_weighted_scales() -> Any:
    """Inline functions by importance: levels and the scale of a group; the scale of all groups' scales."""
    search = _scales.make_search(_SIZE, _HALF)
    scale_search = _scales.make_search(_GROUPS, _HALF_SCALE)
    low, high = float(-_HALF), float(_HALF - 1)

    @inline
    def group_scale(x: int, weights: int, mean: Vector, scratch: int, here: int) -> Vector:
        store(here + _SUM, importance(x, weights, mean, _SIZE, scratch + _WEIGHTS))
        scale, inverse = search(x, scratch + _WEIGHTS)
        for i in range(_SIZE):
            number = level(inverse * load(F32, x + i * F32_BYTES), low, high)
            store(scratch + _TRIED + i * F32_BYTES, select(inverse == 0.0, splat(F32, low), number))
        return scale

    @inline
    def block_scale(values: int, sums: int, levels: int) -> Vector:
        scale, inverse = scale_search(values, sums)
        for group in range(_GROUPS):
            value = load(F32, values + group * F32_BYTES)
            number = level(inverse * value, float(-_HALF_SCALE), float(_HALF_SCALE - 1))
            number = select(inverse == 0.0, zero(F32), number + float(_HALF_SCALE))
            store(levels + group * F32_BYTES, number)
        return scale

    return group_scale, block_scale


def make_encode(weighted: bool) -> Any:
    """See the package."""
    group_scale, block_scale = _make_weighted_scales()
    descent = _scales.make_descent(_SIZE, _HALF)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        mean = 2.0 * sum_of_squares(x, 256) / 256.0 if weighted else zero(F32)
        for group in range(_GROUPS):
            here, first = scratch + group * F32_BYTES, group * _SIZE * F32_BYTES
            if weighted:
                scale = group_scale(x + first, weights + first, mean, scratch, here)
            else:
                scale = descent(x + first, scratch + _TRIED)
            store(here + _SCALE, scale)
            for i in range(_SIZE):
                number = load(F32, scratch + _TRIED + i * F32_BYTES) + float(_HALF)
                store(scratch + _LEVELS + (group * _SIZE + i) * LANES, as_bytes(number))
        if weighted:
            scale = block_scale(scratch + _SCALE, scratch + _SUM, scratch + _SCALE_LEVEL)
        else:
            scale = _rounded_scales(scratch + _SCALE, scratch + _SCALE_LEVEL)
        scale = store_half(out + _D * LANES, scale)
        _store_scales(scratch + _SCALE_LEVEL, scratch + _TRIED, out + _SCALES * LANES)
        _store_levels(x, scale, scratch, out)

    return encode
