"""Q2_K: 16 groups of 16 with a scale and a minimum of 4 bits, levels of 2 bits."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import F32, F32_BYTES, LANES, as_bytes
from graphml_cpu.kernels.encoders._packing import pack_quarters
from graphml_cpu.kernels.encoders._scales_and_minima import GroupedLayout, make_groups
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import load, store

HALVES = (80, 82)
_LAYOUT = GroupedLayout(16, 3, 15, HALVES, first=-0.5, steps=15, by_magnitude=True, mean_factor=1.0)
_Q = 16


def make_encode(weighted: bool) -> Any:
    """See the package."""
    groups = make_groups(_LAYOUT, weighted)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        scales, minima, levels = groups(x, weights, scratch, out)
        for group in range(16):
            scale = as_bytes(load(F32, scales + group * F32_BYTES))
            lowest = as_bytes(load(F32, minima + group * F32_BYTES))
            store(out + group * LANES, scale | (lowest << 4))
        pack_quarters(levels, out + _Q * LANES)

    return encode
