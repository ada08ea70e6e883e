"""Q8_0: blocks of 32, the largest magnitude becomes 127."""

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
from graphml_cpu.simd import convert, load, store

HALVES = (0,)


def make_encode(weighted: bool) -> Any:
    """See the package."""

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        scale = largest_magnitude(x, 32) / 127.0
        inverse = reciprocal(scale)
        store_half(out, scale)
        for i in range(32):
            number = away_from_zero(load(F32, x + i * F32_BYTES) * inverse)
            store(out + (2 + i) * LANES, convert(U8, number))

    return encode
