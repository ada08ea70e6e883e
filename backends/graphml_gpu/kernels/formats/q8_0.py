"""Q8_0: a float16 scale d, then 32 signed bytes q; x = d q."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader, Integers
from graphml_gpu.kernels.formats._words import eight_words, four_words, in_order, only_group, signed4
from graphml_gpu.language import Read, f32, function, half_at, u32


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Sixteen bytes."""
    d = half_at(w, at)
    a, b, c, e = four_words(w, at + 2 + 16 * part, ALIGN)
    return signed4(a) * d, signed4(b) * d, signed4(c) * d, signed4(e) * d


@function
def numbers(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """All of a block."""
    d = half_at(w, at)
    first, last = eight_words(w, at + 2, ALIGN)
    return first, last, d, d, f32(0.0)


Q8_0 = GpuFormatReader(32, 34, unpack, in_order, integers=Integers(numbers, only_group))
