"""Q3_K: blocks of 256 in 110 bytes.

32 bytes of third bits, 2 x 32 of q, 12 of s, d; x = d (s - 32) (q - 4).
"""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import (
    F32x16,
    I8x16,
    U8x4,
    U8x8,
    U8x32,
    floats,
    nibbles,
    pair,
    signed,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import bitcast, concatenate, convert, high_half, load, load_f16, low_half, store


@inline
def _group_scales(address: int) -> Vector:
    """The 16 numbers s - 32 from 8 bytes of low nibbles and 4 bytes of upper bit pairs."""
    upper = load(U8x4, address + 8)
    pairs = concatenate(concatenate(upper & 3, (upper >> 2) & 3), concatenate((upper >> 4) & 3, upper >> 6))
    return bitcast(I8x16, nibbles(load(U8x8, address)) | (pairs << 4)) - 32


@inline
def _half_block(dst: int, packed: Vector, third: Vector, scales: Vector) -> None:
    """The low four bits of `third` are the third bits of this half."""
    first = signed((packed & 3) | ((third << 2) & 4)) - 4
    second = signed(((packed >> 2) & 3) | ((third << 1) & 4)) - 4
    third_plane = signed(((packed >> 4) & 3) | (third & 4)) - 4
    fourth = signed((packed >> 6) | ((third >> 1) & 4)) - 4
    store(dst, floats(first) * pair(scales, 0))
    store(dst + 128, floats(second) * pair(scales, 2))
    store(dst + 256, floats(third_plane) * pair(scales, 4))
    store(dst + 384, floats(fourth) * pair(scales, 6))


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 256):
            at, to = src + block * 110, dst + block * 1024
            scales = convert(F32x16, _group_scales(at + 96)) * load_f16(at + 108)
            third = load(U8x32, at)
            _half_block(to, load(U8x32, at + 32), third, low_half(scales))
            _half_block(to + 512, load(U8x32, at + 64), third >> 4, high_half(scales))

    return decode
