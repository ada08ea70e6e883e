"""IQ1_M: 16 groups of 16 with a scale of 3 bits, vectors of 8 with an index of 11 bits and a shift's sign."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._codebook import index_of
from graphml_cpu.kernels.encoders._lanes import (
    F32,
    F32_BYTES,
    I32,
    LANES,
    U8,
    better_scale,
    odd_level,
    store_half,
    store_weights,
    sum_of_squares,
)
from graphml_cpu.kernels.encoders._packing import store_word
from graphml_cpu.kernels.encoders._ternary import NOTHING_TRIED, SHIFT, make_ternary, split_places
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, f32, load, select, splat, store, to_float, zero

_SIZE, _GROUPS, _BYTES = 16, 16, 56
_INDICES, _HIGH, _SCALES = 0, 32, 48
# In a block the half is in four pieces; whole, it is behind the block, where it is looked at.
HALVES = (_BYTES,)
_SMALLEST = 1e-7
# ggml's, for less error once the groups' scales are rounded
_SCALE_FACTOR = 1.1125
_AT = split_places(_SIZE)
_VALUES, _WEIGHTS, _PLACES = _AT.values, _AT.weights, _AT.places
_HALF_SUMS = (_SIZE + 1) * F32_BYTES
_SUM_X = _AT.free
_SUM_W = _SUM_X + 2 * _HALF_SUMS
_LEVELS = _SUM_W + 2 * _HALF_SUMS


@inline
def _store_sums(scratch: int) -> None:
    """Of those of the first i numbers that are of a half of the group: weights times numbers, weights."""
    for half in range(2):
        sum_x, sum_w, at = zero(F32), zero(F32), scratch + half * _HALF_SUMS
        store(at + _SUM_X, sum_x)
        store(at + _SUM_W, sum_w)
        for i in range(_SIZE):
            here = scratch + i * F32_BYTES
            is_first = load(F32, here + _PLACES) < float(_SIZE // 2)
            weight = load(F32, here + _WEIGHTS)
            next_x, next_w = sum_x + weight * load(F32, here + _VALUES), sum_w + weight
            if half == 0:
                sum_x, sum_w = select(is_first, next_x, sum_x), select(is_first, next_w, sum_w)
            else:
                sum_x, sum_w = select(is_first, sum_x, next_x), select(is_first, sum_w, next_w)
            store(at + _SUM_X + (i + 1) * F32_BYTES, sum_x)
            store(at + _SUM_W + (i + 1) * F32_BYTES, sum_w)


@inline
def _sums(scratch: int, first: int, second: int, high: float) -> tuple[Vector, Vector]:
    """Of a half, with the levels high - 2, high - 1 and high, as ggml takes them together."""
    x, weights = scratch + _SUM_X, scratch + _SUM_W
    below = load(F32, x + first * F32_BYTES) + load(F32, x + second * F32_BYTES)
    low, middle = high - f32(2.0), high - f32(1.0)
    sum_l2 = load(F32, weights + _SIZE * F32_BYTES) * high * high
    sum_l2 += load(F32, weights + first * F32_BYTES) * (low * low - middle * middle)
    sum_l2 += load(F32, weights + second * F32_BYTES) * (middle * middle - high * high)
    return load(F32, x + _SIZE * F32_BYTES) * high - below, sum_l2


@inline
def _split(scratch: int) -> tuple[Vector, Vector, Vector, Vector, Vector, Vector]:
    """See `_ternary`."""
    _store_sums(scratch)
    scale, best = zero(F32), splat(F32, f32(NOTHING_TRIED))
    best_first, best_second = zero(F32), zero(F32)
    shift_of_first, shift_of_second = zero(F32), zero(F32)
    for first in range(_SIZE + 1):
        for second in range(first, _SIZE + 1):
            for sign in range(2):
                shift = f32(SHIFT) - f32(2 * SHIFT) * f32(sign)
                first_lx, first_l2 = _sums(scratch, first, second, f32(1.0) + shift)
                for other_sign in range(2):
                    other = f32(SHIFT) - f32(2 * SHIFT) * f32(other_sign)
                    second_lx, second_l2 = _sums(scratch + _HALF_SUMS, first, second, f32(1.0) + other)
                    sum_lx, sum_l2 = first_lx + second_lx, first_l2 + second_l2
                    is_better, scale, best = better_scale(sum_lx, sum_l2, scale, best)
                    best_first = select(is_better, splat(F32, f32(first)), best_first)
                    best_second = select(is_better, splat(F32, f32(second)), best_second)
                    shift_of_first = select(is_better, splat(F32, shift), shift_of_first)
                    shift_of_second = select(is_better, splat(F32, other), shift_of_second)
    return scale, best_first, best_second, shift_of_first, shift_of_second, best


def make_encode(weighted: bool) -> Any:
    """See the package."""
    ternary = make_ternary(_SIZE, _SMALLEST, weighted, _split)
    search, number, scales, entries, shifts = ternary

    @inline
    def refit(x: int, weights: int, mean: Vector, scale: Vector, scratch: int) -> Vector:
        """The scale of the least squares at the rounded scales of the groups."""
        sum_lx, sum_l2 = zero(F32), zero(F32)
        for group in range(_GROUPS):
            first = group * _SIZE * F32_BYTES
            store_weights(x + first, weights + first, mean, _SIZE, scratch, weighted)
            factor = to_float(load(I32, scratch + _LEVELS + group * F32_BYTES) * 2 + 1)
            for vector in range(2):
                at = (group * 2 + vector) * F32_BYTES
                entry, shift = load(I32, scratch + entries + at), load(F32, scratch + shifts + at)
                for i in range(8):
                    own = (vector * 8 + i) * F32_BYTES
                    meant = number(entry, i, shift) * factor
                    weighed = load(F32, scratch + own) * meant
                    sum_lx += weighed * load(F32, x + first + own)
                    sum_l2 += weighed * meant
        return select(sum_l2 > 0.0, sum_lx / sum_l2, scale)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        mean = 2.0 * sum_of_squares(x, 256) / 256.0
        most = search(x, weights, mean, scratch)
        is_zero, scale = most == 0.0, most / 15.0
        inverse = 1.0 / select(is_zero, splat(F32, 1.0), scale)
        for group in range(_GROUPS):
            own = load(F32, scratch + scales + group * F32_BYTES)
            number_of_scale = convert(I32, odd_level(inverse * own, 7.0))
            store(scratch + _LEVELS + group * F32_BYTES, number_of_scale)
            high = zero(I32)
            for vector in range(2):
                at = (group * 2 + vector) * F32_BYTES
                index = index_of(load(I32, scratch + entries + at))
                store(out + (_INDICES + group * 2 + vector) * LANES, convert(U8, index))
                is_negative = load(F32, scratch + shifts + at) < 0.0
                high |= ((index >> 8) | select(is_negative, splat(I32, 8), zero(I32))) << (4 * vector)
            store(out + (_HIGH + group) * LANES, convert(U8, high))
        scale = select(is_zero, zero(F32), refit(x, weights, mean, scale, scratch) * f32(_SCALE_FACTOR))
        half = out + _BYTES * LANES
        store_half(half, scale)
        bits = convert(I32, load(U8, half)) | (convert(I32, load(U8, half + LANES)) << 8)
        for part in range(4):
            word = ((bits >> (4 * part)) & 15) << 12
            for i in range(4):
                word |= load(I32, scratch + _LEVELS + (part * 4 + i) * F32_BYTES) << (3 * i)
            store_word(word, 2, out + (_SCALES + 2 * part) * LANES)

    return encode
