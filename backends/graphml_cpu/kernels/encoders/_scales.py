"""The search of groups with one scale: x = scale * level, levels on both sides of 0, one more below it.

Of several scales that of the least weighted squares for the levels that are nearest then. (ggml's
make_qx_quants and make_q3_quants, in their order of sums.)
"""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import F32, F32_BYTES, SMALLEST, better_scale, largest, level
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import any_lane, f32, load, select, splat, store, zero

_ROUNDS = 5


def make_search(n: int, half: int, squares: bool = False) -> Any:
    """An inline function search(x, weights) -> (scale, inverse) of groups of n vectors.

    Levels are from -half to half - 1: `level(inverse * x, -half, half - 1)`; inverse is 0 for groups that are
    zero to ggml's precision. squares: the weights are those of the values.
    """
    low, high = float(-half), float(half - 1)

    @inline
    def sums(x: int, weights: int, inverse: Vector) -> tuple[Vector, Vector]:
        sum_lx, sum_l2 = zero(F32), zero(F32)
        for i in range(n):
            value = load(F32, x + i * F32_BYTES)
            weight = value * value if squares else load(F32, weights + i * F32_BYTES)
            number = level(inverse * value, low, high)
            sum_lx += weight * value * number
            sum_l2 += weight * number * number
        return sum_lx, sum_l2

    @inline
    def search(x: int, weights: int) -> tuple[Vector, Vector]:
        most, magnitude = largest(x, n)
        is_zero = magnitude < f32(SMALLEST)
        most = select(is_zero, splat(F32, 1.0), most)
        inverse = low / most
        sum_lx, sum_l2 = sums(x, weights, inverse)
        scale = select(sum_l2 != 0.0, sum_lx / sum_l2, zero(F32))
        best = scale * sum_lx
        for tried in range(-9, 10):
            if tried != 0:
                other = -splat(F32, f32(half) + f32(0.1) * f32(tried)) / most
                sum_lx, sum_l2 = sums(x, weights, other)
                is_better, scale, best = better_scale(sum_lx, sum_l2, scale, best)
                inverse = select(is_better, other, inverse)
        return select(is_zero, zero(F32), scale), select(is_zero, zero(F32), inverse)

    return search


def make_descent(n: int, half: int) -> Any:
    """An inline function descent(x, levels) -> scale of groups of n vectors, weighted by their squares.

    From the nearest levels of one scale, levels are moved one by one for as long as that lessens the error.
    levels: n vectors, from -half to half - 1; of groups that are zero to ggml's precision -half.
    """
    low, high = float(-half), float(half - 1)

    @inline
    def descent(x: int, levels: int) -> Vector:
        most, magnitude = largest(x, n)
        is_zero = magnitude < f32(SMALLEST)
        inverse = low / select(is_zero, splat(F32, 1.0), most)
        sum_lx, sum_l2 = zero(F32), zero(F32)
        for i in range(n):
            value = load(F32, x + i * F32_BYTES)
            weight, number = value * value, level(inverse * value, low, high)
            store(levels + i * F32_BYTES, number)
            sum_lx += weight * value * number
            sum_l2 += weight * number * number
        for _ in range(_ROUNDS):
            has_changed = magnitude < 0.0  # none
            for i in range(n):
                value, number = load(F32, x + i * F32_BYTES), load(F32, levels + i * F32_BYTES)
                weight = value * value
                part_lx = sum_lx - weight * value * number
                part_l2 = sum_l2 - weight * number * number
                other = level(value * part_l2 / part_lx, low, high)
                new_lx = part_lx + weight * value * other
                new_l2 = part_l2 + weight * other * other
                is_better = (part_lx > 0.0) & (other != number) & (new_l2 > 0.0)
                is_better &= new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2
                store(levels + i * F32_BYTES, select(is_better, other, number))
                sum_lx, sum_l2 = select(is_better, new_lx, sum_lx), select(is_better, new_l2, sum_l2)
                has_changed |= is_better
            if not any_lane(has_changed):
                break
        for i in range(n):
            number = load(F32, levels + i * F32_BYTES)
            store(levels + i * F32_BYTES, select(is_zero, splat(F32, low), number))
        return select(is_zero | (sum_l2 <= 0.0), zero(F32), sum_lx / sum_l2)

    return descent
