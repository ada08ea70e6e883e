"""IQ1_M: 32 indices, 16 bytes of 2 x (3 index bits, sign), 4 words of s and d; x = d (2 s + 1) (c +- 1/8)."""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq1_codebook

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import codebook_words, in_order, shifted_vectors
from graphml_gpu.language import Read, byte_at, f32, function, select, short_at, u32, unpack_half2


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """The two vectors of eight of a group."""
    first_heads, last_heads = w[(at >> 2) + 12], w[(at >> 2) + 13]
    low = ((first_heads >> 12) & 15) | ((first_heads >> 24) & 240)
    high = ((last_heads >> 12) & 15) | ((last_heads >> 24) & 240)
    d = unpack_half2(low | (high << 8)).x
    scale = d * f32(2 * ((short_at(w, at + 48 + 2 * (part >> 2)) >> (3 * (part & 3))) & 7) + 1)
    indices, tails = short_at(w, at + 2 * part), byte_at(w, at + 32 + part)
    first, second = (indices & 255) | ((tails & 7) << 8), (indices >> 8) | (((tails >> 4) & 7) << 8)
    shift, more = select((tails & 8) != 0, -0.125, 0.125), select((tails & 128) != 0, -0.125, 0.125)
    return shifted_vectors(table, first, second, shift, more, scale)


IQ1_M = GpuFormatReader(256, 56, unpack, in_order, table=codebook_words(iq1_codebook))
