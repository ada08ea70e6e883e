"""Q1_0: blocks of 128 in 18 bytes: d, 128 bits, the lowest first; x = d for a set bit, else -d."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import F32x32, bits
from graphml_cpu.simd import load_f16, select, splat, store


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 128):
            at, to = src + block * 18, dst + block * 512
            d = splat(F32x32, load_f16(at))
            for word in range(4):
                store(to + word * 128, select(bits(at + 2 + word * 4), d, -d))

    return decode
