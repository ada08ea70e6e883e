"""Q5_K: 8 groups of 32, levels of 5 bits."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import LANES, U8
from graphml_cpu.kernels.encoders._six_bits import HALVES, make_six_bit_groups
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import load, store, zero

__all__ = ["HALVES", "make_encode"]
_HIGH, _LOW = 16, 48


def make_encode(weighted: bool) -> Any:
    """See the package."""
    levels_of = make_six_bit_groups(31, weighted, -0.5, 15)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        levels = levels_of(x, weights, scratch, out)
        for i in range(32):
            fifths = zero(U8)
            for pair in range(4):
                low = load(U8, levels + (pair * 64 + i) * LANES)
                high = load(U8, levels + (pair * 64 + 32 + i) * LANES)
                store(out + (_LOW + pair * 32 + i) * LANES, (low & 15) | (high << 4))
                fifths = (fifths >> 2) | ((low >> 4) << 6) | ((high >> 4) << 7)
            store(out + (_HIGH + i) * LANES, fifths)

    return encode
