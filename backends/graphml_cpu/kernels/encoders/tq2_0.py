"""TQ2_0: blocks of 256, the largest magnitude and numbers -1, 0 and 1 of it, four to a byte."""

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
from graphml_cpu.kernels.encoders._packing import pack_quarters
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, load, store

HALVES = (64,)


def make_encode(weighted: bool) -> Any:
    """See the package."""

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        scale = largest_magnitude(x, 256)
        inverse = reciprocal(scale)
        store_half(out + 64 * LANES, scale)
        for i in range(256):
            number = away_from_zero(load(F32, x + i * F32_BYTES) * inverse) + 1
            store(scratch + i * LANES, convert(U8, number))
        pack_quarters(scratch, out)

    return encode
