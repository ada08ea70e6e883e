"""IQ4_NL: blocks of 32 in 18 bytes: d, 16 bytes of nibbles i; x = d LEVELS[i]."""

from __future__ import annotations

from typing import Any

from graphml_quant.iq4_nl import LEVELS

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import I8x16, U8x16, floats, nibbles
from graphml_cpu.simd import constant_table, load, load_f16, lookup16, store

levels = constant_table(LEVELS.astype("int8").tobytes())


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        table = load(I8x16, levels())
        for block in range(k // 32):
            at = src + block * 18
            numbers = lookup16(table, nibbles(load(U8x16, at + 2)))
            store(dst + block * 128, floats(numbers) * load_f16(at))

    return decode
