"""Q3_K: 32 bytes of third bits, 2 x 32 of low bit pairs, 12 of 6-bit scales s, d; x = d (s - 32) (q - 4)."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import bytes4, planes_place, word
from graphml_gpu.language import Read, byte_at, f32, function, half_at, u32


@function
def group_scale(w: Read[u32], at: u32, group: u32) -> f32:
    """S - 32 of one of the 16 groups: 8 bytes of low nibbles, then 4 of upper bit pairs."""
    low = byte_at(w, at + 96 + (group & 7)) >> (4 * (group >> 3))
    upper = byte_at(w, at + 104 + (group & 3)) >> (2 * (group >> 2))
    return f32((low & 15) | ((upper & 3) << 4)) - 32.0


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Four bytes: four elements of four groups."""
    half, column = part >> 3, 4 * (part & 7)
    d = half_at(w, at + 108)
    group = 8 * half + (column >> 4)
    packed = word(w, at + 32 + 32 * half + column, ALIGN)
    third = word(w, at + column, ALIGN) >> (4 * half)
    return (
        (bytes4((packed & 0x03030303) | ((third << 2) & 0x04040404)) - 4.0) * (group_scale(w, at, group) * d),
        (bytes4(((packed >> 2) & 0x03030303) | ((third << 1) & 0x04040404)) - 4.0)
        * (group_scale(w, at, group + 2) * d),
        (bytes4(((packed >> 4) & 0x03030303) | (third & 0x04040404)) - 4.0)
        * (group_scale(w, at, group + 4) * d),
        (bytes4(((packed >> 6) & 0x03030303) | ((third >> 1) & 0x04040404)) - 4.0)
        * (group_scale(w, at, group + 6) * d),
    )


Q3_K = GpuFormatReader(256, 110, unpack, planes_place)
