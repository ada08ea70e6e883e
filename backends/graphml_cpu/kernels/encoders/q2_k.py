"""Q2_K: 16 groups of 16 with a scale and a minimum of 4 bits, levels of 2 bits."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders import _minima, _positive
from graphml_cpu.kernels.encoders._lanes import (
    F32,
    F32_BYTES,
    LANES,
    U8,
    as_bytes,
    level,
    nearest,
    pack_quarters,
    store_half,
    sum_of_squares,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import absolute, load, maximum, select, splat, square_root, store, zero

HALVES = (80, 82)
_GROUPS, _SIZE, _TOP, _TOP_SCALE = 16, 16, 3, 15
_SCALES, _Q, _D, _MINIMUM = 0, 16, 80, 82
# What scratch holds: seven numbers of each group, levels that are tried, weights, and levels that are kept.
_SCALE, _LOWEST, _INVERSE, _START, _SUM, _SCALE_LEVEL, _LOWEST_LEVEL, _TRIED, _WEIGHTS, _LEVELS = (
    place * _GROUPS * F32_BYTES for place in range(10)
)


@inline
def _rounded_scales(values: int, levels: int) -> Vector:
    """Levels of a scale of the largest value; returns the scale."""
    most = zero(F32)
    for group in range(_GROUPS):
        most = maximum(load(F32, values + group * F32_BYTES), most)
    inverse = select(most > 0.0, float(_TOP_SCALE) / most, zero(F32))
    for group in range(_GROUPS):
        store(levels + group * F32_BYTES, nearest(inverse * load(F32, values + group * F32_BYTES)))
    return most / float(_TOP_SCALE)


def make_encode(weighted: bool) -> Any:
    """See the package."""
    search = (
        _minima.make_search(_SIZE, _TOP, -0.9, 0.05, 36)
        if weighted
        else _minima.make_search(_SIZE, _TOP, -0.5, 0.1, 15, absolute_error=True)
    )
    scale_search = _positive.make_search(_GROUPS, _TOP_SCALE)

    @inline
    def weights_of(x: int, weights: int, mean: Vector, to: int) -> Vector:
        total = zero(F32)
        for i in range(_SIZE):
            value = load(F32, x + i * F32_BYTES)
            if weighted:
                weight = load(F32, weights + i * F32_BYTES) * square_root(mean + value * value)
            else:
                weight = absolute(value)
            store(to + i * F32_BYTES, weight)
            total += weight
        return total

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        mean = sum_of_squares(x, 256) / 256.0 if weighted else zero(F32)
        for group in range(_GROUPS):
            values, here = x + group * _SIZE * F32_BYTES, scratch + group * F32_BYTES
            own = weights_of(values, weights + group * _SIZE * F32_BYTES, mean, scratch + _WEIGHTS)
            scale, lowest, inverse, start = search(values, scratch + _WEIGHTS, scratch + _TRIED)
            store(here + _SCALE, scale)
            store(here + _LOWEST, -lowest)
            store(here + _INVERSE, inverse)
            store(here + _START, start)
            store(here + _SUM, own)
        if weighted:
            scale = scale_search(scratch + _SCALE, scratch + _SUM, scratch + _SCALE_LEVEL)
            lowest = scale_search(scratch + _LOWEST, scratch + _SUM, scratch + _LOWEST_LEVEL)
        else:
            scale = _rounded_scales(scratch + _SCALE, scratch + _SCALE_LEVEL)
            lowest = _rounded_scales(scratch + _LOWEST, scratch + _LOWEST_LEVEL)
        scale, lowest = store_half(out + _D * LANES, scale), store_half(out + _MINIMUM * LANES, lowest)
        for group in range(_GROUPS):
            here = scratch + group * F32_BYTES
            scale_level, lowest_level = load(F32, here + _SCALE_LEVEL), load(F32, here + _LOWEST_LEVEL)
            store(out + (_SCALES + group) * LANES, as_bytes(scale_level) | (as_bytes(lowest_level) << 4))
            d, m = scale * scale_level, lowest * lowest_level
            inverse, start = load(F32, here + _INVERSE), load(F32, here + _START)
            is_zero = d == 0.0  # the levels of the search stay
            divisor = select(is_zero, splat(F32, 1.0), d)
            for i in range(_SIZE):
                value = load(F32, x + (group * _SIZE + i) * F32_BYTES)
                number = level((value + m) / divisor, 0.0, float(_TOP))
                number = select(is_zero, level(inverse * (value - start), 0.0, float(_TOP)), number)
                store(scratch + _LEVELS + (group * _SIZE + i) * LANES, as_bytes(number))
        pack_quarters(scratch + _LEVELS, out + _Q * LANES)

    return encode
