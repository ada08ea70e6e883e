"""IQ2_XS: d, 32 words of 9-bit index and 7-bit sign index, 8 bytes of s; x = d (s + 1/2) / 4 c."""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq2_xs_codebook

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import (
    codebook_words,
    even_signs,
    in_order,
    nibble_at,
    signed_vectors,
    word,
)
from graphml_gpu.language import Read, f32, function, half_at, u32


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """The two vectors of eight of a group."""
    codes = word(w, at + 2 + 4 * part, ALIGN)
    scale = half_at(w, at) * (0.5 + f32(nibble_at(w, at + 66, part))) * 0.25
    first, second = codes & 511, (codes >> 16) & 511
    signs, more = even_signs(codes >> 9), even_signs(codes >> 25)
    return signed_vectors(table, first, second, signs, more, scale)


IQ2_XS = GpuFormatReader(256, 74, unpack, in_order, table=codebook_words(iq2_xs_codebook))
