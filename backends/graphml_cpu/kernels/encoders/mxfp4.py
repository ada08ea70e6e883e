"""MXFP4: blocks of 32, the exponent of the largest magnitude, 4-bit floats."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._fp4 import store_codes
from graphml_cpu.kernels.encoders._lanes import F32, I32, LANES, U8, largest_magnitude
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import bitcast, convert, f32, maximum, select, splat, store, zero

_LOG2_E = 1.4426950408889634
_FRACTIONS = 1 << 23


@inline
def _exponent(x: Vector) -> Vector:
    """The floor of the base-2 logarithm in float32, plus 127: just below a power of two it is rounded up."""
    bits = bitcast(I32, x)
    exponent, below = bits >> 23, _FRACTIONS - (bits & (_FRACTIONS - 1))
    power = convert(F32, exponent - 126)
    logarithm = power - convert(F32, below) * f32(_LOG2_E / (2 * _FRACTIONS))
    return select(logarithm >= power, exponent + 1, exponent)


@inline
def _half_power(exponent: Vector) -> Vector:
    """2^(exponent - 128); the two smallest have no bits of an exponent."""
    smallest = select(exponent == 0, splat(I32, 1 << 21), splat(I32, 1 << 22))
    return bitcast(F32, select(exponent < 2, smallest, (exponent - 1) << 23))


def make_encode(weighted: bool) -> Any:
    """See the package."""

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        most = largest_magnitude(x, 32)
        exponent = select(most > 0.0, maximum(_exponent(most) - 2, 0), zero(I32))
        store(out, convert(U8, exponent))
        store_codes(x, _half_power(exponent), 16, out + LANES)

    return encode
