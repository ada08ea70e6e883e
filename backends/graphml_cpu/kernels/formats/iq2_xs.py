"""IQ2_XS: blocks of 256 in 74 bytes.

d, 32 words of index and sign index, 8 bytes of s; x = d (s + 1/2) / 4 c.
"""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq2_xs_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._signs import even_signs, negate_where
from graphml_cpu.kernels.formats._unpack import floats, pair_of, rows_of_8
from graphml_cpu.simd import constant_table, f32, load_f16, load_u8, load_u16, store

_codes = constant_table(iq2_xs_codebook().tobytes())


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        codes, signs = _codes(), even_signs()
        for block in range(k // 256):
            at, to = src + block * 74, dst + block * 1024
            d = load_f16(at)
            for two_groups in range(8):
                words, scales = at + 2 + two_groups * 8, load_u8(at + 66 + two_groups)
                a, b, c, e = load_u16(words), load_u16(words + 2), load_u16(words + 4), load_u16(words + 6)
                numbers = rows_of_8(codes, a & 511, b & 511, c & 511, e & 511)
                numbers = negate_where(numbers, rows_of_8(signs, a >> 9, b >> 9, c >> 9, e >> 9))
                first = d * (f32(0.5) + f32(scales & 15)) * f32(0.25)
                second = d * (f32(0.5) + f32(scales >> 4)) * f32(0.25)
                store(to + two_groups * 128, floats(numbers) * pair_of(first, second))

    return decode
