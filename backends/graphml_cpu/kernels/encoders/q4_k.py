"""Q4_K: 8 groups of 32, levels of 4 bits."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import LANES, U8
from graphml_cpu.kernels.encoders._six_bits import make_groups
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import load, store

HALVES = (0, 2)
_Q = 16


def make_encode(weighted: bool) -> Any:
    """See the package."""
    groups = make_groups(15, weighted, -1.0, 20)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        levels = groups(x, weights, scratch, out)
        for pair in range(4):
            for i in range(32):
                low = load(U8, levels + (pair * 64 + i) * LANES)
                high = load(U8, levels + (pair * 64 + 32 + i) * LANES)
                store(out + (_Q + pair * 32 + i) * LANES, low | (high << 4))

    return encode
