"""IQ4_XS: 8 groups of 32 with a signed scale of 6 bits, indices of 4 bits into IQ4_NL's curve."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders import _curve
from graphml_cpu.kernels.encoders._lanes import (
    F32,
    F32_BYTES,
    LANES,
    U8,
    as_bytes,
    largest,
    level,
    reciprocal,
    store_half,
    store_weights,
    sum_of_squares,
)
from graphml_cpu.kernels.encoders._packing import pack_neighbours, pack_nibbles
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import load, store, zero

HALVES = (0,)
_GROUPS, _HALF_SCALE = 8, 32
_HIGH, _LOW, _Q = 2, 4, 8
_SCALE, _WEIGHTS = 0, _GROUPS * F32_BYTES
_SCALE_LEVELS = _WEIGHTS + _curve.SIZE * F32_BYTES
_LEVELS = _SCALE_LEVELS + _GROUPS * LANES


@inline
def _store_scales(levels: int, out: int) -> None:
    """Two bytes of the upper bits of four groups each, four of the nibbles of two."""
    for byte in range(2):
        upper = zero(U8)
        for i in range(4):
            upper = (upper >> 2) | ((load(U8, levels + (byte * 4 + i) * LANES) >> 4) << 6)
        store(out + (_HIGH + byte) * LANES, upper)
    pack_neighbours(levels, 4, out + _LOW * LANES)


def make_encode(weighted: bool) -> Any:
    """See the package."""

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        mean = sum_of_squares(x, 256) * (2.0 / 256) if weighted else zero(F32)
        for group in range(_GROUPS):
            first = group * _curve.SIZE * F32_BYTES
            store_weights(x + first, weights + first, mean, _curve.SIZE, scratch + _WEIGHTS, weighted)
            store(scratch + _SCALE + group * F32_BYTES, _curve.search(x + first, scratch + _WEIGHTS))
        most, _ = largest(scratch + _SCALE, _GROUPS)
        scale = -most / float(_HALF_SCALE)
        store_half(out, scale)
        inverse = reciprocal(scale)
        for group in range(_GROUPS):
            own = load(F32, scratch + _SCALE + group * F32_BYTES)
            number = level(inverse * own, float(-_HALF_SCALE), float(_HALF_SCALE - 1))
            store(scratch + _SCALE_LEVELS + group * LANES, as_bytes(number + float(_HALF_SCALE)))
            values = x + group * _curve.SIZE * F32_BYTES
            _curve.store_indices(values, reciprocal(scale * number), scratch + _LEVELS)
            pack_nibbles(scratch + _LEVELS, _curve.SIZE // 2, out + (_Q + group * 16) * LANES)
        _store_scales(scratch + _SCALE_LEVELS, out)

    return encode
