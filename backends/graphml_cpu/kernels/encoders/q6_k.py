"""Q6_K: 16 groups of 16 with a signed scale of 8 bits, levels of 6 bits."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders import _scales
from graphml_cpu.kernels.encoders._lanes import (
    F32,
    F32_BYTES,
    I32,
    LANES,
    SMALLEST,
    U8,
    as_bytes,
    largest,
    level,
    nearest,
    store_half,
)
from graphml_cpu.kernels.encoders._packing import pack_six_bits
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, f32, load, minimum, select, splat, store, zero

HALVES = (208,)
_GROUPS, _SIZE, _HALF = 16, 16, 32
_LOW, _HIGH, _SCALES, _D = 0, 128, 192, 208
_SCALE, _INVERSE, _LEVELS = (place * _GROUPS * F32_BYTES for place in range(3))


def make_encode(weighted: bool) -> Any:
    """See the package."""
    search = _scales.make_search(_SIZE, _HALF, squares=not weighted)
    low, high, half = float(-_HALF), float(_HALF - 1), float(_HALF)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        for group in range(_GROUPS):
            first = group * _SIZE * F32_BYTES
            scale, inverse = search(x + first, weights + first)
            store(scratch + _SCALE + group * F32_BYTES, scale)
            store(scratch + _INVERSE + group * F32_BYTES, inverse)
        most, magnitude = largest(scratch + _SCALE, _GROUPS)
        is_empty = magnitude < f32(SMALLEST)
        inverse_scale = select(is_empty, zero(F32), -128.0 / select(is_empty, splat(F32, 1.0), most))
        scale = store_half(out + _D * LANES, select(is_empty, zero(F32), 1.0 / inverse_scale))
        for group in range(_GROUPS):
            scale_level = nearest(inverse_scale * load(F32, scratch + _SCALE + group * F32_BYTES))
            scale_level = minimum(scale_level, 127.0)
            store(out + (_SCALES + group) * LANES, convert(U8, convert(I32, scale_level)))
            d, inverse = scale * scale_level, load(F32, scratch + _INVERSE + group * F32_BYTES)
            is_zero = d == 0.0  # the levels of the search stay
            divisor = select(is_zero, splat(F32, 1.0), d)
            offset = select(is_empty | (is_zero & (inverse == 0.0)), zero(F32), splat(F32, half))
            for i in range(_SIZE):
                value = load(F32, x + (group * _SIZE + i) * F32_BYTES)
                number = select(is_zero, level(inverse * value, low, high), level(value / divisor, low, high))
                number = select(is_empty, zero(F32), number)
                store(scratch + _LEVELS + (group * _SIZE + i) * LANES, as_bytes(number + offset))
        for part in range(2):
            half_levels = scratch + _LEVELS + part * 128 * LANES
            pack_six_bits(
                half_levels, 32, out + (_LOW + part * 64) * LANES, out + (_HIGH + part * 32) * LANES
            )

    return encode
