"""IQ4_NL: a float16 scale d, then 16 bytes of two 4-bit indices into a curve of levels; x = d LEVELS[i]."""

from __future__ import annotations

from typing import Any

from graphml_quant.iq4_nl import LEVELS

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import high4, low4, nibble_place, packed_bytes, two_words
from graphml_gpu.language import Read, bitcast, f32, f32x4, function, half_at, i32, select, u32

_LEVELS = packed_bytes(LEVELS)


@function
def level(index: u32) -> f32:
    """LEVELS[index] of an index below 16, out of four words: a table in memory would be slower to read."""
    low = select((index & 4) != 0, _LEVELS[1], _LEVELS[0])
    high = select((index & 4) != 0, _LEVELS[3], _LEVELS[2])
    four = select((index & 8) != 0, high, low)
    return f32(bitcast(i32, four << (24 - 8 * (index & 3))) >> 24)


@function
def levels4(packed: u32) -> Any:
    """The levels of four indices, one in each byte."""
    return f32x4(
        level(packed & 15), level((packed >> 8) & 15), level((packed >> 16) & 15), level((packed >> 24) & 15)
    )


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Eight bytes: eight elements of the first half of the block and eight of the second."""
    d = half_at(w, at)
    a, b = two_words(w, at + 2 + 8 * part, ALIGN)
    return levels4(low4(a)) * d, levels4(low4(b)) * d, levels4(high4(a)) * d, levels4(high4(b)) * d


IQ4_NL = GpuFormatReader(32, 18, unpack, nibble_place)
