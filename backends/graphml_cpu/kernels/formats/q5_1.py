"""Q5_1: blocks of 32 in 24 bytes: d, m, 32 fifth bits, 16 bytes of nibbles; x = d q + m."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import U8x16, bits, floats, nibbles
from graphml_cpu.simd import load, load_f16, select, store


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 32):
            at = src + block * 24
            low = nibbles(load(U8x16, at + 8))
            numbers = select(bits(at + 4), low | 16, low)
            store(dst + block * 128, floats(numbers) * load_f16(at) + load_f16(at + 2))

    return decode
