"""IQ3_XXS: d, 64 indices, then a word of 4 x 7 sign bits and s per group; x = d (s + 1/2) / 2 c."""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq3_xxs_codebook

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import codebook_words, even_signs, in_order, signed4, signs4, word
from graphml_gpu.language import Read, f32, function, half_at, u32


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Four vectors of four."""
    indices = word(w, at + 2 + 4 * part, ALIGN)
    codes = word(w, at + 66 + 4 * (part >> 1), ALIGN)
    scale = half_at(w, at) * (0.5 + f32(codes >> 28)) * 0.5
    shift = 14 * (part & 1)
    signs, more = even_signs(codes >> shift), even_signs(codes >> (shift + 7))
    return (
        signs4(signed4(table[indices & 255]), signs) * scale,
        signs4(signed4(table[(indices >> 8) & 255]), signs >> 4) * scale,
        signs4(signed4(table[(indices >> 16) & 255]), more) * scale,
        signs4(signed4(table[indices >> 24]), more >> 4) * scale,
    )


IQ3_XXS = GpuFormatReader(256, 98, unpack, in_order, table=codebook_words(iq3_xxs_codebook))
