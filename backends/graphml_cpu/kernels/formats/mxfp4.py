"""MXFP4: blocks of 32 in 17 bytes: an exponent e, 16 bytes of nibbles i; x = 2^(e - 128) DOUBLED_E2M1[i]."""

from __future__ import annotations

from typing import Any

from graphml_quant.mxfp4 import DOUBLED_E2M1

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import I8x16, U8x16, floats, nibbles
from graphml_cpu.simd import constant_table, float_from_bits, load, load_u8, lookup16, store

doubled_e2m1 = constant_table(DOUBLED_E2M1.astype("int8").tobytes())


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        table = load(I8x16, doubled_e2m1())
        for block in range(k // 32):
            at = src + block * 17
            exponent = load_u8(at)
            # The two smallest powers are subnormal: one bit of the fraction, and no exponent.
            power = (exponent - 1) << 23 if exponent > 1 else 0x200000 << exponent
            numbers = lookup16(table, nibbles(load(U8x16, at + 1)))
            store(dst + block * 128, floats(numbers) * float_from_bits(power))

    return decode
