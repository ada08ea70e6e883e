"""Q4_K: blocks of 256 in 144 bytes: d, e, 12 bytes of s and m, 4 x 32 of nibbles; x = d s q - e m."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import F32x8, U8x4, U8x32, floats
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import concatenate, convert, extract, load, load_f16, store


@inline
def group_scales_and_minima(address: int) -> tuple[Vector, Vector]:
    """D s and e m of the 8 groups of the block at `address`, as in `graphml_quant.q4_k` (Q5_K's too)."""
    a, b, c = load(U8x4, address + 4), load(U8x4, address + 8), load(U8x4, address + 12)
    scales = concatenate(a & 63, (c & 15) | ((a >> 2) & 48))
    minima = concatenate(b & 63, (c >> 4) | ((b >> 2) & 48))
    return convert(F32x8, scales) * load_f16(address), convert(F32x8, minima) * load_f16(address + 2)


@inline
def write_group(dst: int, numbers: Vector, scales: Vector, minima: Vector, group: int) -> None:
    """Write the 32 values of group `group` of a block."""
    store(dst + group * 128, floats(numbers) * extract(scales, group) - extract(minima, group))


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 256):
            at, to = src + block * 144, dst + block * 1024
            scales, minima = group_scales_and_minima(at)
            for quarter in range(4):
                packed = load(U8x32, at + 16 + quarter * 32)
                write_group(to, packed & 15, scales, minima, 2 * quarter)
                write_group(to, packed >> 4, scales, minima, 2 * quarter + 1)

    return decode
