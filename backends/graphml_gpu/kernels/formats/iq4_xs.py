"""IQ4_XS: d, 2 bytes of upper bits of s, 4 of its nibbles, 8 x 16 of 4-bit i; x = d (s - 32) LEVELS[i]."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import high4, low4, two_words
from graphml_gpu.kernels.formats.iq4_nl import levels4
from graphml_gpu.language import Read, f32, function, u32, unpack_half2


@function
def place(part: u32, QUAD: Any) -> Any:
    """Groups of 32, each as a block of IQ4_NL."""
    return 32 * (part >> 1) + 8 * (part & 1) + 4 * (QUAD & 1) + 16 * (QUAD >> 1)


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Eight bytes: eight elements of the first half of a group and eight of the second."""
    group, head = part >> 1, w[at >> 2]
    low = (w[(at >> 2) + 1] >> (4 * group)) & 15
    upper = ((head >> 16) >> (2 * group)) & 3
    scale = (f32(low | (upper << 4)) - 32.0) * unpack_half2(head).x
    a, b = two_words(w, at + 8 + 8 * part, ALIGN)
    return (
        levels4(low4(a)) * scale,
        levels4(low4(b)) * scale,
        levels4(high4(a)) * scale,
        levels4(high4(b)) * scale,
    )


IQ4_XS = GpuFormatReader(256, 136, unpack, place)
