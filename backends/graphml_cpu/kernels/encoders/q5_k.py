"""Q5_K: 8 groups of 32, levels of 5 bits."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import LANES
from graphml_cpu.kernels.encoders._packing import pack_bit, pack_nibbles
from graphml_cpu.kernels.encoders._six_bits import HALVES, make_six_bit_groups
from graphml_cpu.kernels.share import Vector

__all__ = ["HALVES", "make_encode"]
_HIGH, _LOW = 16, 48


def make_encode(weighted: bool) -> Any:
    """See the package."""
    levels_of = make_six_bit_groups(31, weighted, -0.5, 15)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        levels = levels_of(x, weights, scratch, out)
        pack_bit(levels, 4, out + _HIGH * LANES)
        for pair in range(4):
            pack_nibbles(levels + pair * 64 * LANES, 32, out + (_LOW + pair * 32) * LANES)

    return encode
