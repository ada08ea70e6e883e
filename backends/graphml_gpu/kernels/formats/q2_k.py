"""Q2_K: 16 bytes of scale s (low) and minimum m (high), 2 x 32 of 2-bit q, d, e; x = d s q - e m."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import bytes4, planes_place, word
from graphml_gpu.language import Read, byte_at, f32, function, u32, unpack_half2


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Four bytes: four elements of four groups."""
    half, column = part >> 3, 4 * (part & 7)
    head = unpack_half2(w[(at >> 2) + 20])
    scales = at + 8 * half + (column >> 4)
    packed = word(w, at + 16 + 32 * half + column, ALIGN)
    a, b, c, d = (
        byte_at(w, scales),
        byte_at(w, scales + 2),
        byte_at(w, scales + 4),
        byte_at(w, scales + 6),
    )
    return (
        bytes4(packed & 0x03030303) * (f32(a & 15) * head.x) - f32(a >> 4) * head.y,
        bytes4((packed >> 2) & 0x03030303) * (f32(b & 15) * head.x) - f32(b >> 4) * head.y,
        bytes4((packed >> 4) & 0x03030303) * (f32(c & 15) * head.x) - f32(c >> 4) * head.y,
        bytes4((packed >> 6) & 0x03030303) * (f32(d & 15) * head.x) - f32(d >> 4) * head.y,
    )


Q2_K = GpuFormatReader(256, 84, unpack, planes_place)
