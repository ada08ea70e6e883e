"""Q2_0: a float16 scale d, then 16 bytes of four 2-bit numbers q, the lowest first; x = d (q - 1)."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import in_order, word
from graphml_gpu.language import Read, Vector, f32, f32x4, function, half_at, u32


@function
def fields4(packed: u32) -> Vector[f32]:
    """Q - 1 of the lowest byte's four numbers."""
    return (
        f32x4(f32(packed & 3), f32((packed >> 2) & 3), f32((packed >> 4) & 3), f32((packed >> 6) & 3)) - 1.0
    )


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Four bytes."""
    d = half_at(w, at)
    packed = word(w, at + 2 + 4 * part, ALIGN)
    return fields4(packed) * d, fields4(packed >> 8) * d, fields4(packed >> 16) * d, fields4(packed >> 24) * d


Q2_0 = GpuFormatReader(64, 18, unpack, in_order)
