"""What Q4_K and Q5_K share: 8 groups of 32, scales and minima of 6 bits in 12 bytes behind two halves."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders import _minima, _positive
from graphml_cpu.kernels.encoders._lanes import (
    F32,
    F32_BYTES,
    LANES,
    as_bytes,
    level,
    nearest,
    store_half,
    sum_of_squares,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import absolute, load, maximum, minimum, select, splat, square_root, store, zero

_GROUPS, _SIZE = 8, 32
# What scratch holds: seven numbers of each group, levels that are tried, weights, and levels that are kept.
_SCALE, _LOWEST, _INVERSE, _START, _SUM, _SCALE_LEVEL, _LOWEST_LEVEL, _TRIED = (
    place * _GROUPS * F32_BYTES for place in range(8)
)
_WEIGHTS = _TRIED + _SIZE * F32_BYTES
_LEVELS = _WEIGHTS + _SIZE * F32_BYTES
_TOP = 63


@inline
def _rounded_scales(values: int, levels: int) -> Vector:
    """Levels of a scale of the largest value; returns the scale."""
    most = zero(F32)
    for group in range(_GROUPS):
        most = maximum(load(F32, values + group * F32_BYTES), most)
    inverse = select(most > 0.0, float(_TOP) / most, zero(F32))
    for group in range(_GROUPS):
        number = nearest(inverse * load(F32, values + group * F32_BYTES))
        store(levels + group * F32_BYTES, minimum(number, float(_TOP)))
    return most / float(_TOP)


@inline
def _store_scales(scales: int, minima: int, out: int) -> None:
    """12 bytes: `graphml_quant.q4_k.group_scales_and_minima` reads them."""
    for group in range(_GROUPS // 2):
        here, above = group * F32_BYTES, (group + _GROUPS // 2) * F32_BYTES
        scale, high_scale = as_bytes(load(F32, scales + here)), as_bytes(load(F32, scales + above))
        lowest, high_lowest = as_bytes(load(F32, minima + here)), as_bytes(load(F32, minima + above))
        store(out + group * LANES, scale | ((high_scale >> 4) << 6))
        store(out + (4 + group) * LANES, lowest | ((high_lowest >> 4) << 6))
        store(out + (8 + group) * LANES, (high_scale & 15) | ((high_lowest & 15) << 4))


def make_groups(top: int, weighted: bool, first: float, steps: int) -> Any:
    """An inline function groups(x, weights, scratch, out): 16 bytes; where the 256 bytes of levels are."""
    search = (
        _minima.make_search(_SIZE, top, -0.9, 0.05, 36)
        if weighted
        else _minima.make_search(_SIZE, top, first, 0.1, steps)
    )
    scale_search = _positive.make_search(_GROUPS, _TOP)

    @inline
    def weights_of(x: int, weights: int, mean: Vector, scratch: int) -> Vector:
        """The weights of a group's errors; returns their sum."""
        total = zero(F32)
        size = square_root(sum_of_squares(x, _SIZE) / float(_SIZE)) if not weighted else mean
        for i in range(_SIZE):
            value = load(F32, x + i * F32_BYTES)
            if weighted:
                weight = load(F32, weights + i * F32_BYTES) * square_root(size + value * value)
            else:
                weight = size + absolute(value)
            store(scratch + i * F32_BYTES, weight)
            total += weight
        return total

    @inline
    def groups(x: int, weights: int, scratch: int, out: int) -> int:
        scales, minima = scratch + _SCALE, scratch + _LOWEST
        scale_levels, minimum_levels = scratch + _SCALE_LEVEL, scratch + _LOWEST_LEVEL
        mean = 2.0 * sum_of_squares(x, 256) / 256.0 if weighted else zero(F32)
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
            scale = scale_search(scales, scratch + _SUM, scale_levels)
            lowest = scale_search(minima, scratch + _SUM, minimum_levels)
        else:
            scale, lowest = _rounded_scales(scales, scale_levels), _rounded_scales(minima, minimum_levels)
        scale, lowest = store_half(out, scale), store_half(out + 2 * LANES, lowest)
        _store_scales(scale_levels, minimum_levels, out + 4 * LANES)
        for group in range(_GROUPS):
            here = scratch + group * F32_BYTES
            d = scale * load(F32, here + _SCALE_LEVEL)
            m = lowest * load(F32, here + _LOWEST_LEVEL)
            inverse, start = load(F32, here + _INVERSE), load(F32, here + _START)
            is_zero = d == 0.0  # the levels of the search stay
            divisor = select(is_zero, splat(F32, 1.0), d)
            for i in range(_SIZE):
                value = load(F32, x + (group * _SIZE + i) * F32_BYTES)
                number = level((value + m) / divisor, 0.0, float(top))
                number = select(is_zero, level(inverse * (value - start), 0.0, float(top)), number)
                store(scratch + _LEVELS + (group * _SIZE + i) * LANES, as_bytes(number))
        return scratch + _LEVELS

    return groups
