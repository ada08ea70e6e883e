"""NVFP4: 4 groups of 16 with a scale of 8 bits (E4M3), 4-bit floats."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._fp4 import store_codes
from graphml_cpu.kernels.encoders._lanes import F32, F32_BYTES, I32, LANES, U8, largest_magnitude
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import bitcast, convert, f32, minimum, select, splat, store, to_float

_SMALLEST_NORMAL = 2.0**-6
_SMALLEST_HALF = 2.0**-10
_NO_SCALE = 1e37


@inline
def _e4m3(x: Vector) -> Vector:
    """The nearest code of numbers from 0, halves up; from 256 on the largest."""
    x = minimum(x, 448.0)
    subnormal = minimum(convert(I32, x * 512.0 + 0.5), 7)
    normal = ((bitcast(I32, x) + (1 << 19)) >> 20) - (120 << 3)
    normal = select(normal >= 0x78, splat(I32, 0x7E), normal)
    return select(x < f32(_SMALLEST_NORMAL), subnormal, normal)


@inline
def _half_value(code: Vector) -> Vector:
    """Half of what a code means; where that is 0, so much that every number is nearest to 0 times it."""
    normal = bitcast(F32, (code << 20) + (119 << 23))
    value = select(code < 8, to_float(code) * f32(_SMALLEST_HALF), normal)
    return select(code == 0, splat(F32, f32(_NO_SCALE)), value)


def make_encode(weighted: bool) -> Any:
    """See the package."""

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        for group in range(4):
            values = x + group * 16 * F32_BYTES
            code = _e4m3(largest_magnitude(values, 16) / 6.0)
            store(out + group * LANES, convert(U8, code))
            store_codes(values, _half_value(code), 8, out + (4 + group * 8) * LANES)

    return encode
