"""IQ4_XS: blocks of 256 in 136 bytes: d, 2 + 4 bytes of s, 8 x 16 of nibbles i; x = d (s - 32) LEVELS[i]."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import I8x16, U8x16, floats, nibbles
from graphml_cpu.kernels.formats.iq4_nl import levels
from graphml_cpu.simd import f32, load, load_f16, load_u16, load_u32, lookup16, store


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        table = load(I8x16, levels())
        for block in range(k // 256):
            at, to = src + block * 136, dst + block * 1024
            d, upper, lower = load_f16(at), load_u16(at + 2), load_u32(at + 4)
            for group in range(8):
                scale = ((lower >> (4 * group)) & 15) | (((upper >> (2 * group)) & 3) << 4)
                numbers = lookup16(table, nibbles(load(U8x16, at + 8 + group * 16)))
                store(to + group * 128, floats(numbers) * (f32(scale - 32) * d))

    return decode
