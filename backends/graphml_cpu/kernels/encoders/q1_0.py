"""Q1_0: blocks of 128, the mean magnitude and signs."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import F32, F32_BYTES, LANES, U8, store_half
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import absolute, load, select, splat, store, zero

HALVES = (0,)
_SIZE = 128


def make_encode(weighted: bool) -> Any:
    """See the package."""

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        total = zero(F32)
        for byte in range(_SIZE // 8):
            bits = zero(U8)
            for i in range(8):
                value = load(F32, x + (byte * 8 + i) * F32_BYTES)
                total += absolute(value)
                bits = (bits >> 1) | select(value >= 0.0, splat(U8, 128), zero(U8))
            store(out + (2 + byte) * LANES, bits)
        store_half(out, total / float(_SIZE))

    return encode
