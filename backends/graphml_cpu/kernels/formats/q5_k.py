"""Q5_K: blocks of 256 in 176 bytes: the head of Q4_K, 32 bytes of fifth bits, 4 x 32 of nibbles."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import U8x32
from graphml_cpu.kernels.formats.q4_k import group_scales_and_minima, write_group
from graphml_cpu.simd import load


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 256):
            at, to = src + block * 176, dst + block * 1024
            scales, minima = group_scales_and_minima(at)
            fifth = load(U8x32, at + 16)
            for quarter in range(4):
                packed = load(U8x32, at + 48 + quarter * 32)
                low = (packed & 15) | ((fifth << 4) & 16)
                high = (packed >> 4) | ((fifth << 3) & 16)
                write_group(to, low, scales, minima, 2 * quarter)
                write_group(to, high, scales, minima, 2 * quarter + 1)
                fifth = fifth >> 2

    return decode
