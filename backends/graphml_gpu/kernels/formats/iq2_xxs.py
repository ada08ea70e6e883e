"""IQ2_XXS: d, then 8 groups of 4 indices and a word of 4 x 7 sign bits and s; x = d (s + 1/2) / 4 c."""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq2_xxs_codebook

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import (
    codebook_words,
    even_signs,
    in_order,
    signed_vectors,
    two_words,
)
from graphml_gpu.language import Read, f32, function, half_at, u32


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Two vectors of eight of one group."""
    indices, codes = two_words(w, at + 2 + 8 * (part >> 1), ALIGN)
    scale = half_at(w, at) * (0.5 + f32(codes >> 28)) * 0.25
    shift = 2 * (part & 1)
    first, second = (indices >> (8 * shift)) & 255, (indices >> (8 * shift + 8)) & 255
    signs, more = even_signs(codes >> (7 * shift)), even_signs(codes >> (7 * shift + 7))
    return signed_vectors(table, first, second, signs, more, scale)


IQ2_XXS = GpuFormatReader(256, 66, unpack, in_order, table=codebook_words(iq2_xxs_codebook))
