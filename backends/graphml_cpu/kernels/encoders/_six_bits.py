"""What Q4_K and Q5_K share: 8 groups of 32, scales and minima of 6 bits in 12 bytes behind two halves."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import F32, F32_BYTES, LANES, as_bytes
from graphml_cpu.kernels.encoders._scales_and_minima import GroupedLayout, make_groups
from graphml_cpu.simd import load, store

HALVES = (0, 2)


@inline
def _store_scales(scales: int, minima: int, out: int) -> None:
    """12 bytes: `graphml_quant.q4_k.group_scales_and_minima` reads them."""
    for group in range(4):
        here, above = group * F32_BYTES, (4 + group) * F32_BYTES
        scale, high_scale = as_bytes(load(F32, scales + here)), as_bytes(load(F32, scales + above))
        lowest, high_lowest = as_bytes(load(F32, minima + here)), as_bytes(load(F32, minima + above))
        store(out + group * LANES, scale | ((high_scale >> 4) << 6))
        store(out + (4 + group) * LANES, lowest | ((high_lowest >> 4) << 6))
        store(out + (8 + group) * LANES, (high_scale & 15) | ((high_lowest & 15) << 4))


def make_six_bit_groups(top: int, weighted: bool, first: float, steps: int) -> Any:
    """An inline function levels_of(x, weights, scratch, out): 16 bytes; returns where the levels are."""
    groups = make_groups(GroupedLayout(8, top, 63, HALVES, first, steps), weighted)

    @inline
    def levels_of(x: int, weights: int, scratch: int, out: int) -> int:
        scales, minima, levels = groups(x, weights, scratch, out)
        _store_scales(scales, minima, out + 4 * LANES)
        return int(levels)

    return levels_of
