"""Blocks of 256 in groups with a scale and a minimum, whose own scales are halves: Q2_K, Q4_K and Q5_K."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders import _minima, _positive
from graphml_cpu.kernels.encoders._lanes import (
    F32,
    F32_BYTES,
    LANES,
    as_bytes,
    importance,
    largest_value,
    level,
    nearest,
    store_half,
    sum_of_squares,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    absolute,
    load,
    minimum,
    select,
    splat,
    square_root,
    store,
    zero,
)


@dataclass(frozen=True)
class GroupedLayout:
    """How many groups; the largest level, and that of a group's scale; at which bytes the two halves are.

    first, steps: of the search without importance (`_minima`), by tenths. by_magnitude: it weighs the
    magnitudes of errors by those of values; else squares by these and their root mean square. mean_factor:
    of the mean of squares that importance is multiplied with.
    """

    groups: int
    top: int
    top_scale: int
    halves: tuple[int, int]
    first: float
    steps: int
    by_magnitude: bool = False
    mean_factor: float = 2.0


@inline
def _rounded_scales(values: int, levels: int, n: int, top: float) -> Vector:
    """Levels of a scale of the largest value; returns the scale."""
    most = largest_value(values, n)
    inverse = select(most > 0.0, top / most, zero(F32))
    for group in range(n):
        number = nearest(inverse * load(F32, values + group * F32_BYTES))
        store(levels + group * F32_BYTES, minimum(number, top))
    return most / top


def make_groups(layout: GroupedLayout, weighted: bool) -> Any:
    """An inline function groups(x, weights, scratch, out) -> (scales, minima, levels).

    It stores the two halves. Addresses of whole numbers: F32 for each group, and bytes for each element.
    """
    n, size, top, top_scale = layout.groups, 256 // layout.groups, float(layout.top), float(layout.top_scale)
    scale_at, lowest_at = layout.halves[0] * LANES, layout.halves[1] * LANES
    by_magnitude, factor = layout.by_magnitude, layout.mean_factor
    if weighted:
        search = _minima.make_search(size, layout.top, -0.9, 0.05, 36)
    else:
        search = _minima.make_search(size, layout.top, layout.first, 0.1, layout.steps, by_magnitude)
    scale_search = _positive.make_search(n, layout.top_scale)
    # What scratch holds: seven numbers of each group, levels that are tried, weights, levels that are kept.
    scales, minima, inverses, starts, sums, scale_levels, minimum_levels, tried = (
        place * n * F32_BYTES for place in range(8)
    )
    own_weights = tried + size * F32_BYTES
    levels = own_weights + size * F32_BYTES

    @inline
    def store_magnitudes(x: int, to: int) -> None:
        base = zero(F32) if by_magnitude else square_root(sum_of_squares(x, size) / float(size))
        for i in range(size):
            store(to + i * F32_BYTES, base + absolute(load(F32, x + i * F32_BYTES)))

    @inline
    def search_groups(x: int, weights: int, scratch: int) -> None:
        mean = factor * sum_of_squares(x, 256) / 256.0 if weighted else zero(F32)
        for group in range(n):
            values, here = x + group * size * F32_BYTES, scratch + group * F32_BYTES
            if weighted:
                own = weights + group * size * F32_BYTES
                store(here + sums, importance(values, own, mean, size, scratch + own_weights))
            else:
                store_magnitudes(values, scratch + own_weights)
            scale, lowest, inverse, start = search(values, scratch + own_weights, scratch + tried)
            store(here + scales, scale)
            store(here + minima, -lowest)
            store(here + inverses, inverse)
            store(here + starts, start)

    @inline
    def store_levels(x: int, here: int, scale: Vector, lowest: Vector, to: int) -> None:
        """The levels of a group for the scale and the minimum that it is decoded with."""
        d, m = scale * load(F32, here + scale_levels), lowest * load(F32, here + minimum_levels)
        inverse, start = load(F32, here + inverses), load(F32, here + starts)
        is_zero = d == 0.0  # the levels of the search stay
        divisor = select(is_zero, splat(F32, 1.0), d)
        for i in range(size):
            value = load(F32, x + i * F32_BYTES)
            searched = level(inverse * (value - start), 0.0, top)
            number = select(is_zero, searched, level((value + m) / divisor, 0.0, top))
            store(to + i * LANES, as_bytes(number))

    @inline
    def groups(x: int, weights: int, scratch: int, out: int) -> tuple[int, int, int]:
        search_groups(x, weights, scratch)
        if weighted:
            scale = scale_search(scratch + scales, scratch + sums, scratch + scale_levels)
            lowest = scale_search(scratch + minima, scratch + sums, scratch + minimum_levels)
        else:
            scale = _rounded_scales(scratch + scales, scratch + scale_levels, n, top_scale)
            lowest = _rounded_scales(scratch + minima, scratch + minimum_levels, n, top_scale)
        scale, lowest = store_half(out + scale_at, scale), store_half(out + lowest_at, lowest)
        for group in range(n):
            values, to = x + group * size * F32_BYTES, scratch + levels + group * size * LANES
            store_levels(values, scratch + group * F32_BYTES, scale, lowest, to)
        return scratch + scale_levels, scratch + minimum_levels, scratch + levels

    return groups
