"""F32: single-precision numbers."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import in_order
from graphml_gpu.language import Read, bitcast, f32, f32x4, function, u32


@function
def quad(w: Read[u32], first: u32) -> Any:
    """Four numbers from word `first` on."""
    return f32x4(
        bitcast(f32, w[first]),
        bitcast(f32, w[first + 1]),
        bitcast(f32, w[first + 2]),
        bitcast(f32, w[first + 3]),
    )


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Sixteen numbers."""
    first = at >> 2
    return quad(w, first), quad(w, first + 4), quad(w, first + 8), quad(w, first + 12)


@function
def element(w: Read[u32], row: u32, i: u32) -> Any:
    """One number."""
    return bitcast(f32, w[(row >> 2) + i])


F32 = GpuFormatReader(16, 64, unpack, in_order, element=element)
