"""IQ2_S: blocks of 256 in 82 bytes.

d, 32 indices, 32 bytes of signs, 8 of upper index bits, 8 of s; x = d (s + 1/2) / 4 c.
"""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq2_s_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._grids import make_grid
from graphml_cpu.kernels.formats._groups import CpuFormatReader
from graphml_cpu.kernels.formats._unpack import U8x8, U8x32, bits, block_decoder, floats, rows_of_8
from graphml_cpu.kernels.formats.iq2_xs import half_scales, scales_of_halves
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import (
    constant_lanes,
    constant_table,
    convert,
    f32,
    load,
    load_f16,
    load_u8,
    select,
    shuffle_by,
    vector,
)

_codes = constant_table(iq2_s_codebook().tobytes())


@inline
def _decoded(at: int, two_groups: int, d: Number) -> Vector:
    codes = _codes()
    index = at + 2 + two_groups * 4
    upper, scales = load_u8(at + 66 + two_groups), load_u8(at + 74 + two_groups)
    numbers = rows_of_8(
        codes,
        load_u8(index) | ((upper & 3) << 8),
        load_u8(index + 1) | ((upper & 12) << 6),
        load_u8(index + 2) | ((upper & 48) << 4),
        load_u8(index + 3) | ((upper & 192) << 2),
    )
    numbers = select(bits(index + 32), -numbers, numbers)
    return floats(numbers) * scales_of_halves(scales, d)


def make_decode() -> Any:
    """`decode(src, dst, k)`."""
    return block_decoder(82, _decoded)


_U16x32 = vector("u16", 32)
_four_times = shuffle_by([lane // 4 for lane in range(32)])
_pair_up = constant_lanes(_U16x32, (8, 6, 4, 2) * 8)
_signed_vectors = make_grid(iq2_s_codebook(), 64)


@inline
def _indices(at: int) -> Vector:
    upper = (convert(_U16x32, _four_times(load(U8x8, at + 66))) << _pair_up()) & 0x300
    return convert(_U16x32, load(U8x32, at + 2)) | upper


@inline
def _read(at: int) -> Any:
    signs = load(U8x32, at + 34)
    first_scales, second_scales = half_scales(load(U8x8, at + 74), load_f16(at) * f32(0.25))
    first, second = _signed_vectors(_indices(at), signs)
    return (first, first_scales, ()), (second, second_scales, ())


def make_read() -> CpuFormatReader:
    """Signed vectors, 64 too much; a scale per 16."""
    return CpuFormatReader(82, block_bytes=82, block_elements=256, read=_read, groups=2, scales=2, offset=64)
