"""BF16: the upper halves of single-precision numbers."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import in_order, unpack_bf16, unpack_sixteen
from graphml_gpu.language import Read, bf16_low, function, short_at, u32


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Sixteen numbers, two to a word."""
    return unpack_sixteen(w, at, ALIGN, unpack_bf16)


@function
def element(w: Read[u32], row: u32, i: u32) -> Any:
    """One number."""
    return bf16_low(short_at(w, row + 2 * i))


BF16 = GpuFormatReader(16, 32, unpack, in_order, element=element)
