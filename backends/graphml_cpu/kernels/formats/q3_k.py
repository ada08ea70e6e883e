"""Q3_K: blocks of 256 in 110 bytes.

32 bytes of third bits, 2 x 32 of q, 12 of s, d; x = d (s - 32) (q - 4).
"""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, broadcast16, rotate_quarters, shift_quarters
from graphml_cpu.kernels.formats._unpack import (
    F32x16,
    I8x16,
    U8x4,
    U8x8,
    U8x16,
    U8x32,
    floats,
    nibbles,
    pair,
    signed,
)
from graphml_cpu.kernels.formats.q6_k import half_scales
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    bitcast,
    concatenate,
    constant_lanes,
    convert,
    high_half,
    load,
    load_f16,
    low_half,
    rotate_right_by,
    shuffle_by,
    store,
    vector,
)


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


U32x4 = vector("u32", 4)
_planes = shift_quarters((0, 2, 4, 6))
_third_of_first, _third_of_second = rotate_quarters((30, 31, 0, 1)), rotate_quarters((2, 3, 4, 5))
# From the 2 bytes before the scales on: their low nibbles are in a, b, their upper pairs in c, and d is last.
_nibbles_of = shuffle_by([*range(2, 10), *range(2, 10)])
_pairs_of = shuffle_by([*range(10, 14)] * 4)
_nibbles_down, _pairs_around = constant_lanes(U32x4, (0, 0, 4, 4)), rotate_right_by((28, 30, 0, 2))


@inline
def _all_scales(address: int) -> Vector:
    """D (s - 32) for the 16 groups of 16 of the block at `address`, F32x16."""
    packed = load(U8x16, address + 94)
    low = bitcast(U32x4, _nibbles_of(packed)) >> _nibbles_down()
    upper = _pairs_around(bitcast(U32x4, _pairs_of(packed)))
    numbers = bitcast(I8x16, (low & 0x0F0F0F0F) | (upper & 0x30303030)) - 32
    return convert(F32x16, numbers) * load_f16(address + 108)


@inline
def _values(packed: Vector, third: Vector) -> Vector:
    return (_planes(packed) & 3) | (third & 4)


@inline
def _read(at: int) -> Any:
    scales, low, high = _all_scales(at), broadcast16(at), broadcast16(at + 16)
    a = _values(broadcast16(at + 32), _third_of_first(low))
    b = _values(broadcast16(at + 48), _third_of_first(high))
    c = _values(broadcast16(at + 64), _third_of_second(low))
    d = _values(broadcast16(at + 80), _third_of_second(high))
    first, second = half_scales(scales)
    return ((a, b), first, ()), ((c, d), second, ())


def make_read() -> CpuFormatReader:
    """Three bits, 4 too much; a scale per 16."""
    return CpuFormatReader(110, block_bytes=110, block_elements=256, read=_read, groups=2, scales=2, offset=4)
