"""F16: half-precision numbers."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import four_words, in_order
from graphml_gpu.language import Read, f32x4, function, half_at, u32, unpack_half2


@function
def quad(low: u32, high: u32) -> Any:
    """Two words of two numbers."""
    first, second = unpack_half2(low), unpack_half2(high)
    return f32x4(first.x, first.y, second.x, second.y)


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Sixteen numbers, two to a word."""
    a, b, c, d = four_words(w, at, ALIGN)
    e, f, g, h = four_words(w, at + 16, ALIGN)
    return quad(a, b), quad(c, d), quad(e, f), quad(g, h)


@function
def element(w: Read[u32], row: u32, i: u32) -> Any:
    """One number."""
    return half_at(w, row + 2 * i)


F16 = GpuFormatReader(16, 32, unpack, in_order, element=element)
