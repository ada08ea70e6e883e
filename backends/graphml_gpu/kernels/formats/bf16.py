"""BF16: the upper halves of single-precision numbers."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import four_words, in_order
from graphml_gpu.language import Read, bf16_high, bf16_low, f32x4, function, short_at, u32


@function
def quad(low: u32, high: u32) -> Any:
    """Two words of two numbers."""
    return f32x4(bf16_low(low), bf16_high(low), bf16_low(high), bf16_high(high))


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Sixteen numbers, two to a word."""
    a, b, c, d = four_words(w, at, ALIGN)
    e, f, g, h = four_words(w, at + 16, ALIGN)
    return quad(a, b), quad(c, d), quad(e, f), quad(g, h)


@function
def element(w: Read[u32], row: u32, i: u32) -> Any:
    """One number."""
    return bf16_low(short_at(w, row + 2 * i))


BF16 = GpuFormatReader(16, 32, unpack, in_order, element=element)
