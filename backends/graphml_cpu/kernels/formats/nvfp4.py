"""NVFP4: blocks of 64 in 36 bytes: 4 scales s (E4M3), 4 x 8 bytes of nibbles i; x = s / 2 DOUBLED_E2M1[i]."""

from __future__ import annotations

from typing import Any

import numpy as np
from graphml_quant.nvfp4 import NVFP4
from numpy.typing import NDArray

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, take
from graphml_cpu.kernels.formats._unpack import F32x8, I8x16, U8x4, U8x16, U8x32, floats, pair_of
from graphml_cpu.kernels.formats.mxfp4 import doubled_e2m1, values_plus_16
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    bitcast,
    concatenate,
    constant_lanes,
    constant_table,
    convert,
    load,
    load_f32,
    load_u8,
    lookup16,
    select,
    shuffle_by,
    shuffle_pair_by,
    store,
    vector,
    zero,
)


def _scale_values() -> NDArray[np.float32]:
    """What each scale byte stands for [256]: the value that the format's decoder gives to nibble 1."""
    blocks = np.full((256, NVFP4.block_bytes), 0x11, np.uint8)
    blocks[:, :4] = np.arange(256, dtype=np.uint8)[:, None]
    return np.ascontiguousarray(NVFP4.decode(blocks)[:, 0], "<f4")


_scales = constant_table(_scale_values().tobytes())
# Two groups of 8 low nibbles and two of 8 high ones -> both halves of a group side by side.
_groups = shuffle_pair_by([*range(8), *range(16, 24), *range(8, 16), *range(24, 32)])


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        table, scales = load(I8x16, doubled_e2m1()), _scales()
        for block in range(k // 64):
            at = src + block * 36
            for two_groups in range(2):
                packed = load(U8x16, at + 4 + two_groups * 16)
                numbers = lookup16(table, _groups(packed & 15, packed >> 4))
                first = load_f32(scales + load_u8(at + 2 * two_groups) * 4)
                second = load_f32(scales + load_u8(at + 2 * two_groups + 1) * 4)
                store(dst + block * 256 + two_groups * 128, floats(numbers) * pair_of(first, second))

    return decode


_U16x8, _F16x8, _U64x8, _U8x64 = vector("u16", 8), vector("f16", 8), vector("u64", 8), vector("u8", 64)
_even_twice, _odd_twice = shuffle_by((0, 0, 2, 2, 4, 4, 6, 6)), shuffle_by((1, 1, 3, 3, 5, 5, 7, 7))
_low_and_high = constant_lanes(_U64x8, (0, 4) * 4)
_even_scales, _odd_scales = take((0, 2, 4, 6)), take((1, 3, 5, 7))


@inline
def _half_of_e4m3(codes: Vector) -> Vector:
    """Half of what eight scale bytes stand for: F32x8.

    As the upper bits of an IEEE half they are 256 times too small. The sign does not count, 0x7F is 0.
    """
    halves = bitcast(_F16x8, (convert(_U16x8, codes) << 7) & 0x3F80)
    return select(codes == 0x7F, zero(F32x8), convert(F32x8, halves) * 128.0)


@inline
def _values(groups: Vector) -> Vector:
    return values_plus_16(bitcast(_U8x64, groups >> _low_and_high()) & 15)


@inline
def _two_blocks(a: int, b: int) -> Any:
    packed = bitcast(_U64x8, concatenate(load(U8x32, a + 4), load(U8x32, b + 4)))
    scales = _half_of_e4m3(concatenate(load(U8x4, a), load(U8x4, b)))
    values = _values(_even_twice(packed)), _values(_odd_twice(packed))
    return ((values, (_even_scales(scales), _odd_scales(scales)), ()),)


@inline
def _read(at: int) -> Any:
    return _two_blocks(at, at + 36)


@inline
def _read_rest(at: int, blocks: int) -> Any:
    return _two_blocks(at, at)


def make_read() -> CpuFormatReader:
    """Two blocks a unit; doubled numbers, 16 too much; a scale per 16."""
    return CpuFormatReader(
        72, block_bytes=36, block_elements=64, read=_read, read_rest=_read_rest, scales=2, offset=16
    )
