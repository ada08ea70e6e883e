"""IQ2_XXS: blocks of 256 in 66 bytes.

d, per group of 32 four indices, a word of signs and s; x = d (s + 1/2) / 4 c.
"""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq2_xxs_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._signs import negate_where, signs_of_word
from graphml_cpu.kernels.formats._unpack import floats, rows_of_8
from graphml_cpu.simd import constant_table, f32, load_f16, load_u8, load_u32, store

_codes = constant_table(iq2_xxs_codebook().tobytes())


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        codes = _codes()
        for block in range(k // 256):
            at, to = src + block * 66, dst + block * 1024
            d = load_f16(at)
            for group in range(8):
                index = at + 2 + group * 8
                word = load_u32(index + 4)
                numbers = rows_of_8(
                    codes, load_u8(index), load_u8(index + 1), load_u8(index + 2), load_u8(index + 3)
                )
                scale = d * (f32(0.5) + f32(word >> 28)) * f32(0.25)
                store(to + group * 128, floats(negate_where(numbers, signs_of_word(word))) * scale)

    return decode
