"""Blocks of 32 with a scale, and perhaps a minimum, levels of 4 bits or 5: Q4_0, Q4_1, Q5_0 and Q5_1.

Without importance nothing is searched: the range of the values is that of the levels.
"""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders import _minima, _scales
from graphml_cpu.kernels.encoders._lanes import (
    F32,
    F32_BYTES,
    I32,
    LANES,
    U8,
    as_bytes,
    importance,
    largest,
    level,
    reciprocal,
    store_half,
)
from graphml_cpu.kernels.encoders._packing import pack_nibbles
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, load, maximum, minimum, select, store, zero

_SIZE = 32
_WEIGHTS, _TRIED = 0, _SIZE * F32_BYTES
_LEVELS = 2 * _SIZE * F32_BYTES


@inline
def _truncated(x: Vector, top: int) -> Vector:
    """Whole numbers of positive ones, at most `top`, as bytes."""
    return convert(U8, minimum(convert(I32, x), top))


@inline
def _store_fifths(levels: int, out: int) -> None:
    """4 bytes of the fifth bits."""
    for byte in range(4):
        bits = zero(U8)
        for i in range(8):
            bits = (bits >> 1) | ((load(U8, levels + (byte * 8 + i) * LANES) >> 4) << 7)
        store(out + byte * LANES, bits)


def _make_scale(top: int, weighted: bool) -> Any:
    """An inline function levels_of(x, weights, row_mean, scratch, out): a scale, and bytes of levels."""
    half = (top + 1) // 2
    search = _scales.make_search(_SIZE, half)
    low, high = float(-half), float(half - 1)

    @inline
    def levels_of(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        if weighted:
            importance(x, weights, row_mean, _SIZE, scratch + _WEIGHTS)
            scale, inverse = search(x, scratch + _WEIGHTS)
            is_zero = inverse == 0.0
            for i in range(_SIZE):
                number = level(inverse * load(F32, x + i * F32_BYTES), low, high) + float(half)
                store(scratch + _LEVELS + i * LANES, as_bytes(select(is_zero, zero(F32), number)))
        else:
            most, _ = largest(x, _SIZE)
            scale = most / low
            inverse = reciprocal(scale)
            for i in range(_SIZE):
                number = load(F32, x + i * F32_BYTES) * inverse + (half + 0.5)
                store(scratch + _LEVELS + i * LANES, _truncated(number, top))
        store_half(out, scale)

    return levels_of


def _make_scale_and_minimum(top: int, weighted: bool) -> Any:
    """The same of a scale and a minimum."""
    search = _minima.make_search(_SIZE, top, -0.9, 0.05, 36)

    @inline
    def levels_of(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        if weighted:
            importance(x, weights, row_mean, _SIZE, scratch + _WEIGHTS)
            scale, lowest, inverse, start = search(x, scratch + _WEIGHTS, scratch + _TRIED)
            for i in range(_SIZE):
                number = level(inverse * (load(F32, x + i * F32_BYTES) - start), 0.0, float(top))
                store(scratch + _LEVELS + i * LANES, as_bytes(number))
        else:
            lowest, most = load(F32, x), load(F32, x)
            for i in range(1, _SIZE):
                value = load(F32, x + i * F32_BYTES)
                lowest, most = minimum(value, lowest), maximum(value, most)
            scale = (most - lowest) / float(top)
            inverse = reciprocal(scale)
            for i in range(_SIZE):
                number = (load(F32, x + i * F32_BYTES) - lowest) * inverse + 0.5
                store(scratch + _LEVELS + i * LANES, _truncated(number, top))
        store_half(out, scale)
        store_half(out + 2 * LANES, lowest)

    return levels_of


def make_nibble_blocks(weighted: bool, has_minimum: bool, has_fifth: bool) -> Any:
    """The function `encode` of such a format, see the package."""
    make = _make_scale_and_minimum if has_minimum else _make_scale
    levels_of = make(31 if has_fifth else 15, weighted)
    fifths = (4 if has_minimum else 2) * LANES
    nibbles = fifths + (4 * LANES if has_fifth else 0)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        levels_of(x, weights, row_mean, scratch, out)
        if has_fifth:
            _store_fifths(scratch + _LEVELS, out + fifths)
        pack_nibbles(scratch + _LEVELS, _SIZE // 2, out + nibbles)

    return encode
