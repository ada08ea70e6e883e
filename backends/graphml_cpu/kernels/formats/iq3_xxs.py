"""IQ3_XXS: blocks of 256 in 98 bytes.

d, 64 indices, per group of 32 a word of signs and s; x = d (s + 1/2) / 2 c.
"""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq3_xxs_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._signs import negate_where, signs_of_word
from graphml_cpu.kernels.formats._unpack import floats, rows_of_4
from graphml_cpu.simd import concatenate, constant_table, f32, load_f16, load_u8, load_u32, store

_codes = constant_table(iq3_xxs_codebook().tobytes())


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        codes = _codes()
        for block in range(k // 256):
            at, to = src + block * 98, dst + block * 1024
            d = load_f16(at)
            for group in range(8):
                i = at + 2 + group * 8
                word = load_u32(at + 66 + group * 4)
                left = rows_of_4(codes, load_u8(i), load_u8(i + 1), load_u8(i + 2), load_u8(i + 3))
                right = rows_of_4(codes, load_u8(i + 4), load_u8(i + 5), load_u8(i + 6), load_u8(i + 7))
                numbers = negate_where(concatenate(left, right), signs_of_word(word))
                scale = d * (f32(0.5) + f32(word >> 28)) * f32(0.5)
                store(to + group * 128, floats(numbers) * scale)

    return decode
