"""Q6_K: 128 bytes of nibbles, 64 of upper bit pairs, 16 signed scales s of 16 each, d; x = d s (q - 32)."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import Reader
from graphml_gpu.kernels.formats._words import bytes4, high4, low4, planes_place, word
from graphml_gpu.language import Read, bitcast, byte_at, f32, function, half_at, i32, u32


@function
def group_scale(w: Read[u32], at: u32) -> f32:
    """A signed byte."""
    return f32(bitcast(i32, byte_at(w, at) << 24) >> 24)


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Four bytes of each run: four elements of four groups."""
    half, column = part >> 3, 4 * (part & 7)
    d = half_at(w, at + 208)
    scales = at + 192 + 8 * half + (column >> 4)
    a = word(w, at + 64 * half + column, ALIGN)
    b = word(w, at + 64 * half + 32 + column, ALIGN)
    upper = word(w, at + 128 + 32 * half + column, ALIGN)
    return (
        (bytes4(low4(a) | ((upper << 4) & 0x30303030)) - 32.0) * (group_scale(w, scales) * d),
        (bytes4(low4(b) | ((upper << 2) & 0x30303030)) - 32.0) * (group_scale(w, scales + 2) * d),
        (bytes4(high4(a) | (upper & 0x30303030)) - 32.0) * (group_scale(w, scales + 4) * d),
        (bytes4(high4(b) | ((upper >> 2) & 0x30303030)) - 32.0) * (group_scale(w, scales + 6) * d),
    )


Q6_K = Reader(256, 210, unpack, planes_place)
