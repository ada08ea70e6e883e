"""Q2_K: blocks of 256 in 84 bytes: 16 bytes of s (low) and m, 2 x 32 of q, d, e; x = d s q - e m."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, broadcast16, shift_quarters
from graphml_cpu.kernels.formats._unpack import F32x16, U8x16, U8x32, floats, pair
from graphml_cpu.kernels.formats.q6_k import half_scales
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, high_half, load, load_f16, low_half, shuffle_by, store


@inline
def _half_block(dst: int, packed: Vector, scales: Vector, minima: Vector) -> None:
    store(dst, floats(packed & 3) * pair(scales, 0) - pair(minima, 0))
    store(dst + 128, floats((packed >> 2) & 3) * pair(scales, 2) - pair(minima, 2))
    store(dst + 256, floats((packed >> 4) & 3) * pair(scales, 4) - pair(minima, 4))
    store(dst + 384, floats(packed >> 6) * pair(scales, 6) - pair(minima, 6))


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 256):
            at, to = src + block * 84, dst + block * 1024
            groups = load(U8x16, at)
            scales = convert(F32x16, groups & 15) * load_f16(at + 80)
            minima = convert(F32x16, groups >> 4) * load_f16(at + 82)
            _half_block(to, load(U8x32, at + 16), low_half(scales), low_half(minima))
            _half_block(to + 512, load(U8x32, at + 48), high_half(scales), high_half(minima))

    return decode


_planes = shift_quarters((0, 2, 4, 6))
_first_minima, _second_minima = (
    shuffle_by((0, 2, 4, 6, 1, 3, 5, 7)),
    shuffle_by((8, 10, 12, 14, 9, 11, 13, 15)),
)


@inline
def plane(at: int) -> Vector:
    """The 16 bytes at an address four times: their lowest two bits, the next two ... (TQ2_0's too)."""
    return _planes(broadcast16(at)) & 3


@inline
def _read(at: int) -> Any:
    groups = load(U8x16, at)
    scales = convert(F32x16, groups & 15) * load_f16(at + 80)
    minima = convert(F32x16, groups >> 4) * -load_f16(at + 82)
    first, second = half_scales(scales)
    return (
        ((plane(at + 16), plane(at + 32)), first, _first_minima(minima)),
        ((plane(at + 48), plane(at + 64)), second, _second_minima(minima)),
    )


def make_read() -> CpuFormatReader:
    """Two bits as they are; a scale and a minimum per 16."""
    return CpuFormatReader(84, block_bytes=84, block_elements=256, read=_read, groups=2, scales=2, minima=2)
