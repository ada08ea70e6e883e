"""TQ1_0: blocks of 256, the largest magnitude and numbers -1, 0 and 1 of it, five to a byte."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import (
    F32,
    F32_BYTES,
    I32,
    LANES,
    U8,
    away_from_zero,
    largest_magnitude,
    reciprocal,
    store_half,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, load, store, zero

HALVES = (52,)


@inline
def _store_run(x: int, inverse: Vector, n: int, digits: int, out: int) -> None:
    """N bytes: byte i has the elements i, n + i, 2 n + i, ..., the first its highest digit."""
    for i in range(n):
        number = zero(I32)
        for digit in range(digits):
            value = load(F32, x + (digit * n + i) * F32_BYTES)
            number = number * 3 + away_from_zero(value * inverse) + 1
        if digits < 5:
            number = number * 3
        # ceil(256 number / 243): 135 / 2^15 is 1 / 243 for all that occurs
        store(out + i * LANES, convert(U8, number + (((number * 13 + 242) * 135) >> 15)))


def make_encode(weighted: bool) -> Any:
    """See the package."""

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        scale = largest_magnitude(x, 256)
        inverse = reciprocal(scale)
        _store_run(x, inverse, 32, 5, out)
        _store_run(x + 160 * F32_BYTES, inverse, 16, 5, out + 32 * LANES)
        _store_run(x + 240 * F32_BYTES, inverse, 4, 4, out + 48 * LANES)
        store_half(out + 52 * LANES, scale)

    return encode
