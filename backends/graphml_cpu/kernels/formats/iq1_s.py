"""IQ1_S: blocks of 256 in 50 bytes.

d, 32 indices, 8 words of upper index bits, s, sign; x = d (2s + 1) (c +- 1/8).
"""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq1_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import floats, rows_of_8
from graphml_cpu.simd import constant_table, f32, load_f16, load_u8, load_u16, store

codes = constant_table(iq1_codebook().tobytes())


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        table = codes()
        for block in range(k // 256):
            at, to = src + block * 50, dst + block * 1024
            d = load_f16(at)
            for group in range(8):
                index, head = at + 2 + group * 4, load_u16(at + 34 + group * 2)
                numbers = rows_of_8(
                    table,
                    load_u8(index) | ((head & 7) << 8),
                    load_u8(index + 1) | (((head >> 3) & 7) << 8),
                    load_u8(index + 2) | (((head >> 6) & 7) << 8),
                    load_u8(index + 3) | (((head >> 9) & 7) << 8),
                )
                shift = f32(-0.125) if head >> 15 else f32(0.125)
                scale = f32(2 * ((head >> 12) & 7) + 1) * d
                store(to + group * 128, (floats(numbers) + shift) * scale)

    return decode
