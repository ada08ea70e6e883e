"""Q4_K: 8 groups of 32, levels of 4 bits."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import LANES
from graphml_cpu.kernels.encoders._packing import pack_nibbles
from graphml_cpu.kernels.encoders._six_bits import HALVES, make_six_bit_groups
from graphml_cpu.kernels.share import Vector

__all__ = ["HALVES", "make_encode"]
_Q = 16


def make_encode(weighted: bool) -> Any:
    """See the package."""
    levels_of = make_six_bit_groups(15, weighted, -1.0, 20)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        levels = levels_of(x, weights, scratch, out)
        for pair in range(4):
            pack_nibbles(levels + pair * 64 * LANES, 32, out + (_Q + pair * 32) * LANES)

    return encode
