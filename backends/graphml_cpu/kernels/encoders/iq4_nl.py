"""IQ4_NL: blocks of 32, a scale, indices of 4 bits into a curve."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders import _curve
from graphml_cpu.kernels.encoders._lanes import (
    F32,
    F32_BYTES,
    LANES,
    reciprocal,
    store_half,
    store_weights,
    sum_of_squares,
)
from graphml_cpu.kernels.encoders._packing import pack_nibbles
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import zero

HALVES = (0,)
_WEIGHTS, _LEVELS = 0, _curve.SIZE * F32_BYTES


def make_encode(weighted: bool) -> Any:
    """See the package."""

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        mean = sum_of_squares(x, _curve.SIZE) * (2.0 / _curve.SIZE) if weighted else zero(F32)
        store_weights(x, weights, mean, _curve.SIZE, scratch + _WEIGHTS, weighted)
        scale = _curve.search(x, scratch + _WEIGHTS)
        store_half(out, scale)
        _curve.store_indices(x, reciprocal(scale), scratch + _LEVELS)
        pack_nibbles(scratch + _LEVELS, _curve.SIZE // 2, out + 2 * LANES)

    return encode
