"""IQ3_S: d, 64 indices, 8 bytes of their ninth bits, 32 of signs, 4 of s; x = d (2 s + 1) c."""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq3_s_codebook

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import codebook_words, in_order, nibble_at, signed4, signs4, word
from graphml_gpu.language import Read, f32, function, half_at, short_at, u32


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Four vectors of four."""
    indices = word(w, at + 2 + 4 * part, ALIGN)
    ninth, signs = nibble_at(w, at + 66, part), short_at(w, at + 74 + 2 * part)
    scale = half_at(w, at) * f32(2 * nibble_at(w, at + 106, part >> 1) + 1)
    return (
        signs4(signed4(table[(indices & 255) | ((ninth << 8) & 256)]), signs) * scale,
        signs4(signed4(table[((indices >> 8) & 255) | ((ninth << 7) & 256)]), signs >> 4) * scale,
        signs4(signed4(table[((indices >> 16) & 255) | ((ninth << 6) & 256)]), signs >> 8) * scale,
        signs4(signed4(table[(indices >> 24) | ((ninth << 5) & 256)]), signs >> 12) * scale,
    )


IQ3_S = GpuFormatReader(256, 110, unpack, in_order, table=codebook_words(iq3_s_codebook))
