"""Q4_1: blocks of 32 in 20 bytes: d, m, 16 bytes of nibbles; x = d q + m."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import U8x16, floats, nibbles
from graphml_cpu.simd import load, load_f16, store


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 32):
            at = src + block * 20
            numbers = nibbles(load(U8x16, at + 4))
            store(dst + block * 128, floats(numbers) * load_f16(at) + load_f16(at + 2))

    return decode
