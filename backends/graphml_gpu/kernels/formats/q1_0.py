"""Q1_0: a float16 scale d, then 16 bytes of bits, the lowest first; x = d where set, else -d."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import bytes4, in_order, spread4
from graphml_gpu.language import Read, function, half_at, short_at, u32


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Two bytes."""
    d = half_at(w, at)
    bits = short_at(w, at + 2 + 2 * part)
    return (
        (bytes4(spread4(bits)) * 2.0 - 1.0) * d,
        (bytes4(spread4(bits >> 4)) * 2.0 - 1.0) * d,
        (bytes4(spread4(bits >> 8)) * 2.0 - 1.0) * d,
        (bytes4(spread4(bits >> 12)) * 2.0 - 1.0) * d,
    )


Q1_0 = GpuFormatReader(128, 18, unpack, in_order)
