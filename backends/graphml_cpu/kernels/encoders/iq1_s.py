"""IQ1_S: 8 groups of 32 with a scale of 3 bits and a shift's sign, vectors of 8 with an index of 11 bits."""

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
    sum_of_squares,
)
from graphml_cpu.kernels.encoders._packing import store_word
from graphml_cpu.kernels.encoders._ternary import NOTHING_TRIED, SHIFT, make_ternary, split_places
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, f32, load, select, splat, store, zero

HALVES = (0,)
_SIZE, _GROUPS = 32, 8
_INDICES, _WORDS = 2, 34
_SMALLEST = 1e-12
# ggml's, for less error once the groups' scales are rounded
_SCALE_FACTOR = 1.125
_AT = split_places(_SIZE)
_VALUES, _WEIGHTS = _AT.values, _AT.weights
_SUM_X = _AT.free
_SUM_W = _SUM_X + (_SIZE + 1) * F32_BYTES


@inline
def _store_sums(scratch: int) -> None:
    """Of the first i numbers, i from 0 to all: weights times numbers, and weights."""
    sum_x, sum_w = zero(F32), zero(F32)
    store(scratch + _SUM_X, sum_x)
    store(scratch + _SUM_W, sum_w)
    for i in range(_SIZE):
        weight = load(F32, scratch + _WEIGHTS + i * F32_BYTES)
        sum_x += weight * load(F32, scratch + _VALUES + i * F32_BYTES)
        sum_w += weight
        store(scratch + _SUM_X + (i + 1) * F32_BYTES, sum_x)
        store(scratch + _SUM_W + (i + 1) * F32_BYTES, sum_w)


@inline
def _sums(scratch: int, first: int, second: int, shift: float) -> tuple[Vector, Vector]:
    """Of levels times weights times numbers, and of levels' squares times weights."""
    low, middle, high = f32(shift - 1.0), f32(shift), f32(shift + 1.0)
    x, weights = scratch + _SUM_X, scratch + _SUM_W
    x_first, x_second = load(F32, x + first * F32_BYTES), load(F32, x + second * F32_BYTES)
    w_first, w_second = load(F32, weights + first * F32_BYTES), load(F32, weights + second * F32_BYTES)
    x_all, w_all = load(F32, x + _SIZE * F32_BYTES), load(F32, weights + _SIZE * F32_BYTES)
    sum_lx = x_first * low + (x_second - x_first) * middle + (x_all - x_second) * high
    sum_l2 = w_first * low * low + (w_second - w_first) * middle * middle + (w_all - w_second) * high * high
    return sum_lx, sum_l2


@inline
def _split(scratch: int) -> tuple[Vector, Vector, Vector, Vector, Vector, Vector]:
    """See `_ternary`."""
    _store_sums(scratch)
    scale, best = zero(F32), splat(F32, f32(NOTHING_TRIED))
    best_first, best_second, best_shift = zero(F32), zero(F32), zero(F32)
    for first in range(_SIZE + 1):
        for second in range(first, _SIZE + 1):
            for sign in range(2):
                shift = f32(SHIFT) - f32(2 * SHIFT) * f32(sign)
                sum_lx, sum_l2 = _sums(scratch, first, second, shift)
                is_better, scale, best = better_scale(sum_lx, sum_l2, scale, best)
                best_first = select(is_better, splat(F32, f32(first)), best_first)
                best_second = select(is_better, splat(F32, f32(second)), best_second)
                best_shift = select(is_better, splat(F32, shift), best_shift)
    return scale, best_first, best_second, best_shift, best_shift, best


def make_encode(weighted: bool) -> Any:
    """See the package."""
    search, _, scales, entries, shifts = make_ternary(_SIZE, _SMALLEST, weighted, _split)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        mean = 2.0 * sum_of_squares(x, 256) / 256.0
        most = search(x, weights, mean, scratch)
        scale = most / 15.0
        store_half(out, scale * f32(_SCALE_FACTOR))
        inverse = 1.0 / select(most == 0.0, splat(F32, 1.0), scale)
        for group in range(_GROUPS):
            own = load(F32, scratch + scales + group * F32_BYTES)
            word = convert(I32, odd_level(inverse * own, 7.0)) << 12
            shift = load(F32, scratch + shifts + group * 4 * F32_BYTES)
            word |= select(shift < 0.0, splat(I32, 1 << 15), zero(I32))
            for i in range(4):
                index = index_of(load(I32, scratch + entries + (group * 4 + i) * F32_BYTES))
                store(out + (_INDICES + group * 4 + i) * LANES, convert(U8, index))
                word |= (index >> 8) << (3 * i)
            store_word(word, 2, out + (_WORDS + group * 2) * LANES)

    return encode
