"""The search of groups with a scale and a minimum: x = scale * level + minimum, levels from 0 on.

For each of several widths of the range, levels are the nearest; scale and minimum then are those of the least
weighted squares for these levels. What has the least weighted error is kept. (ggml's make_qkx2_quants and
make_qkx3_quants, in its order of sums.)
"""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import F32, F32_BYTES, level
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import absolute, f32, load, maximum, minimum, select, splat, store, zero


def make_search(n: int, top: int, first: float, step: float, steps: int, absolute_error: bool = False) -> Any:
    """An inline function search(x, weights, levels) -> (scale, minimum, inverse, start) of groups of n.

    Levels are at most `top`; they are `level(inverse * (x - start), 0, top)`. first, step, steps: of the
    widths that are tried. levels: scratch for n vectors.
    """
    top_level = float(top)

    @inline
    def error_of(difference: Vector) -> Vector:
        return absolute(difference) if absolute_error else difference * difference

    @inline
    def search(x: int, weights: int, levels: int) -> tuple[Vector, Vector, Vector, Vector]:
        value, weight = load(F32, x), load(F32, weights)
        least, most = value, value
        sum_w, sum_x = weight, weight * value
        for i in range(1, n):
            value, weight = load(F32, x + i * F32_BYTES), load(F32, weights + i * F32_BYTES)
            least, most = minimum(value, least), maximum(value, most)
            sum_w += weight
            sum_x += weight * value
        least = minimum(zero(F32), least)  # a zero keeps its sign
        is_flat = most == least
        most = select(is_flat, least + 1.0, most)  # all levels are 0; the scale becomes 0 in the end
        inverse, start = top_level / (most - least), least
        scale, lowest = 1.0 / inverse, least
        best = zero(F32)
        for i in range(n):
            value, weight = load(F32, x + i * F32_BYTES), load(F32, weights + i * F32_BYTES)
            number = level(inverse * (value - least), 0.0, top_level)
            best += weight * error_of(scale * number + least - value)
        for tried in range(steps + 1):
            width = f32(first) + f32(step) * f32(tried) + f32(top)
            tried_inverse = splat(F32, width) / (most - lowest)
            sum_l, sum_l2, sum_xl = zero(F32), zero(F32), zero(F32)
            for i in range(n):
                value, weight = load(F32, x + i * F32_BYTES), load(F32, weights + i * F32_BYTES)
                number = level(tried_inverse * (value - lowest), 0.0, top_level)
                store(levels + i * F32_BYTES, number)
                weighted = weight * number
                sum_l += weighted
                sum_l2 += weighted * number
                sum_xl += weighted * value
            determinant = sum_w * sum_l2 - sum_l * sum_l
            new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
            new_lowest = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
            is_above = new_lowest > 0.0
            new_scale = select(is_above, sum_xl / sum_l2, new_scale)
            new_lowest = select(is_above, zero(F32), new_lowest)
            error = zero(F32)
            for i in range(n):
                value, weight = load(F32, x + i * F32_BYTES), load(F32, weights + i * F32_BYTES)
                number = load(F32, levels + i * F32_BYTES)
                error += weight * error_of(new_scale * number + new_lowest - value)
            is_better = (determinant > 0.0) & (error < best)
            best = select(is_better, error, best)
            inverse, start = select(is_better, tried_inverse, inverse), select(is_better, lowest, start)
            scale, lowest = select(is_better, new_scale, scale), select(is_better, new_lowest, lowest)
        return select(is_flat, zero(F32), scale), lowest, inverse, start

    return search
