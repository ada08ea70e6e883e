"""Q8_0: blocks of 32 in 34 bytes: d, 32 signed bytes; x = d q."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import I8x32, floats
from graphml_cpu.simd import load, load_f16, store


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 32):
            at = src + block * 34
            store(dst + block * 128, floats(load(I8x32, at + 2)) * load_f16(at))

    return decode
