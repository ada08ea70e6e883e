"""IQ1_S: d, 32 indices, then per group a word: 4 x 3 index bits, s, sign; x = d (2 s + 1) (c +- 1/8)."""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq1_codebook

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import codebook_words, in_order, shifted_vectors
from graphml_gpu.language import Read, f32, function, half_at, select, short_at, u32


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Two vectors of eight of one group."""
    indices, head = short_at(w, at + 2 + 2 * part), short_at(w, at + 34 + 2 * (part >> 1))
    scale = half_at(w, at) * f32(2 * ((head >> 12) & 7) + 1)
    shift = select((head >> 15) != 0, -0.125, 0.125)
    upper = head >> (6 * (part & 1))
    first, second = (indices & 255) | ((upper & 7) << 8), (indices >> 8) | (((upper >> 3) & 7) << 8)
    return shifted_vectors(table, first, second, shift, shift, scale)


IQ1_S = GpuFormatReader(256, 50, unpack, in_order, table=codebook_words(iq1_codebook))
