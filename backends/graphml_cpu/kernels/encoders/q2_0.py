"""Q2_0: blocks of 64, the largest magnitude and levels from -1 to 2 of it, of which 2 does not occur."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import (
    F32,
    F32_BYTES,
    LANES,
    U8,
    away_from_zero,
    largest_magnitude,
    reciprocal,
    store_half,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, load, maximum, minimum, store, zero

HALVES = (0,)
_SIZE = 64


def make_encode(weighted: bool) -> Any:
    """See the package."""

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        scale = largest_magnitude(x, _SIZE)
        inverse = reciprocal(scale)
        store_half(out, scale)
        for byte in range(_SIZE // 4):
            packed = zero(U8)
            for i in range(4):
                number = away_from_zero(load(F32, x + (byte * 4 + i) * F32_BYTES) * inverse) + 1
                packed = (packed >> 2) | (convert(U8, minimum(maximum(number, 0), 3)) << 6)
            store(out + (2 + byte) * LANES, packed)

    return encode
