"""IQ1_M: blocks of 256 in 56 bytes.

32 indices, 16 bytes of upper index bits and signs, 4 words of s and d; as IQ1_S.
"""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import F32x8, I8x8
from graphml_cpu.kernels.formats.iq1_s import codes
from graphml_cpu.kernels.share import Number
from graphml_cpu.simd import bitcast, convert, extract, f32, load, load_u8, load_u16, splat, store, vector

_HALVES, _WORDS = vector("f16", 8), vector("u16", 8)


@inline
def _block_scale(heads: int) -> Number:
    """The float16 whose four nibbles are the top nibbles of the four words at `heads`."""
    a, b, c, d = load_u16(heads), load_u16(heads + 2), load_u16(heads + 4), load_u16(heads + 6)
    half = (a >> 12) | ((b >> 8) & 0xF0) | ((c >> 4) & 0xF00) | (d & 0xF000)
    return extract(convert(F32x8, bitcast(_HALVES, splat(_WORDS, half))), 0)


@inline
def _write_vector(dst: int, table: int, index: int, tail: int, scale: Number) -> None:
    """One codebook vector; `tail` is three upper index bits and the sign of the shift."""
    numbers = load(I8x8, table + (index | ((tail & 7) << 8)) * 8)
    shift = f32(-0.125) if tail & 8 else f32(0.125)
    store(dst, (convert(F32x8, numbers) + shift) * scale)


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        table = codes()
        for block in range(k // 256):
            at, to = src + block * 56, dst + block * 1024
            d = _block_scale(at + 48)
            for group in range(16):
                head = load_u16(at + 48 + group // 4 * 2)
                scale = f32(2 * ((head >> (3 * (group & 3))) & 7) + 1) * d
                tails = load_u8(at + 32 + group)
                _write_vector(to + group * 64, table, load_u8(at + 2 * group), tails & 15, scale)
                _write_vector(to + group * 64 + 32, table, load_u8(at + 2 * group + 1), tails >> 4, scale)

    return decode
