"""TQ2_0: 2 x 32 bytes of four 2-bit numbers q, d; x = d (q - 1)."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import bytes4, planes_place, word
from graphml_gpu.language import Read, function, half_at, u32


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Four bytes: four elements of four runs of 32."""
    d = half_at(w, at + 64)
    packed = word(w, at + 32 * (part >> 3) + 4 * (part & 7), ALIGN)
    return (
        (bytes4(packed & 0x03030303) - 1.0) * d,
        (bytes4((packed >> 2) & 0x03030303) - 1.0) * d,
        (bytes4((packed >> 4) & 0x03030303) - 1.0) * d,
        (bytes4((packed >> 6) & 0x03030303) - 1.0) * d,
    )


TQ2_0 = GpuFormatReader(256, 66, unpack, planes_place)
