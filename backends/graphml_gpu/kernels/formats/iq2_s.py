"""IQ2_S: d, 32 indices, 32 bytes of signs, 8 of upper index bits, 8 of s; x = d (s + 1/2) / 4 c."""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq2_s_codebook

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import codebook_words, in_order, nibble_at, signed_vectors
from graphml_gpu.language import Read, f32, function, half_at, short_at, u32


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """The two vectors of eight of a group."""
    indices, signs = short_at(w, at + 2 + 2 * part), short_at(w, at + 34 + 2 * part)
    upper = nibble_at(w, at + 66, part)
    scale = half_at(w, at) * (0.5 + f32(nibble_at(w, at + 74, part))) * 0.25
    first, second = (indices & 255) | ((upper & 3) << 8), (indices >> 8) | ((upper >> 2) << 8)
    return signed_vectors(table, first, second, signs, signs >> 8, scale)


IQ2_S = GpuFormatReader(256, 82, unpack, in_order, table=codebook_words(iq2_s_codebook))
