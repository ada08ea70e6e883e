"""The search of one scale of numbers that are not negative: the scales and the minima of a block's groups.

The best of nine scales, then levels one by one, for as long as that lessens the weighted error. (ggml's
make_qp_quants, in its order of sums.)
"""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import F32, F32_BYTES, SMALLEST, largest_value, nearest
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import any_lane, f32, load, minimum, select, splat, store, zero

_ROUNDS = 5


@inline
def _wrapped(number: Vector) -> Vector:
    """What a negative level is in ggml's bytes."""
    return select(number < 0.0, number + 256.0, number)


def make_search(n: int, top: int, wraps: bool = False) -> Any:
    """An inline function search(x, weights, levels) -> scale of n vectors; their levels are at most `top`.

    wraps: some of x are negative, and their levels become ggml's, which keeps them in bytes without a sign.
    """

    @inline
    def error_of(x: int, weights: int, inverse: Vector, kept: bool) -> Vector:
        scale, error = 1.0 / inverse, zero(F32)
        for i in range(n):
            value = load(F32, x + i * F32_BYTES)
            number = minimum(nearest(inverse * value), float(top))
            difference = value - scale * (_wrapped(number) if kept else number)
            error += load(F32, weights + i * F32_BYTES) * difference * difference
        return error

    @inline
    def search(x: int, weights: int, levels: int) -> Vector:
        most = largest_value(x, n)
        is_zero = most < f32(SMALLEST)
        most = select(is_zero, splat(F32, 1.0), most)
        inverse = float(top) / most
        best = error_of(x, weights, inverse, wraps)
        for tried in range(-4, 5):
            if tried != 0:
                other = splat(F32, f32(0.1) * f32(tried) + f32(top)) / most
                error = error_of(x, weights, other, False)
                is_better = error < best
                best, inverse = select(is_better, error, best), select(is_better, other, inverse)
        sum_lx, sum_l2 = zero(F32), zero(F32)
        for i in range(n):
            value, weight = load(F32, x + i * F32_BYTES), load(F32, weights + i * F32_BYTES)
            number = minimum(nearest(inverse * value), float(top))
            store(levels + i * F32_BYTES, select(is_zero, zero(F32), _wrapped(number) if wraps else number))
            sum_lx += weight * value * number
            sum_l2 += weight * number * number
        for _ in range(_ROUNDS):
            has_changed = most < 0.0  # none
            for i in range(n):
                value, weight = load(F32, x + i * F32_BYTES), load(F32, weights + i * F32_BYTES)
                number = load(F32, levels + i * F32_BYTES)
                part_lx = sum_lx - weight * value * number
                part_l2 = sum_l2 - weight * number * number
                other = minimum(nearest(value * part_l2 / part_lx), float(top))
                new_lx = part_lx + weight * value * other
                new_l2 = part_l2 + weight * other * other
                is_better = (part_lx > 0.0) & (part_l2 > 0.0) & (other != number)
                is_better &= new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2
                chosen = _wrapped(other) if wraps else other
                store(levels + i * F32_BYTES, select(is_better, chosen, number))
                sum_lx, sum_l2 = select(is_better, new_lx, sum_lx), select(is_better, new_l2, sum_l2)
                has_changed |= is_better
            if not any_lane(has_changed):
                break
        return select(is_zero | (sum_l2 <= 0.0), zero(F32), sum_lx / sum_l2)

    return search
