"""IQ3_S: blocks of 256 in 110 bytes.

d, 64 indices, 8 bytes of ninth bits, 32 of signs, 4 of s; x = d (2s + 1) c.
"""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq3_s_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._grids import make_grid
from graphml_cpu.kernels.formats._groups import CpuFormatReader, take
from graphml_cpu.kernels.formats._unpack import F32x8, U8x32, bits, block_decoder, floats, rows_of_4
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import (
    concatenate,
    constant_lanes,
    constant_table,
    convert,
    f32,
    load,
    load_f16,
    load_u8,
    load_u32,
    select,
    splat,
    vector,
)

_codes = constant_table(iq3_s_codebook().tobytes())


@inline
def _four_codes(codes: int, index: int, ninth: int) -> Vector:
    """Four codebook vectors; the low four bits of `ninth` belong to the four index bytes at `index`."""
    return rows_of_4(
        codes,
        load_u8(index) | ((ninth & 1) << 8),
        load_u8(index + 1) | ((ninth & 2) << 7),
        load_u8(index + 2) | ((ninth & 4) << 6),
        load_u8(index + 3) | ((ninth & 8) << 5),
    )


@inline
def _decoded(at: int, group: int, d: Number) -> Vector:
    codes = _codes()
    index, ninth = at + 2 + group * 8, load_u8(at + 66 + group)
    numbers = concatenate(_four_codes(codes, index, ninth), _four_codes(codes, index + 4, ninth >> 4))
    numbers = select(bits(at + 74 + group * 4), -numbers, numbers)
    number = (load_u8(at + 106 + group // 2) >> (4 * (group & 1))) & 15
    return floats(numbers) * (f32(2 * number + 1) * d)


def make_decode() -> Any:
    """`decode(src, dst, k)`."""
    return block_decoder(110, _decoded)


_U16x32, _I32x8 = vector("u16", 32), vector("i32", 8)
_nibble_of = constant_lanes(_I32x8, range(0, 32, 4))
_signed_vectors = make_grid(iq3_s_codebook(), 16)
_first_scales, _second_scales = take((0, 1, 2, 3)), take((4, 5, 6, 7))


@inline
def _indices(at: int) -> tuple[Vector, Vector]:
    first, second = convert(_U16x32, load(U8x32, at + 2)), convert(_U16x32, load(U8x32, at + 34))
    return select(bits(at + 66), first + 256, first), select(bits(at + 70), second + 256, second)


@inline
def _read(at: int) -> Any:
    signs = load(U8x32, at + 74)
    numbers = (splat(_I32x8, load_u32(at + 106)) >> _nibble_of()) & 15
    scales = convert(F32x8, numbers + numbers + 1) * load_f16(at)
    first, second = _signed_vectors(_indices(at), signs)
    return (first, (_first_scales(scales),), ()), (second, (_second_scales(scales),), ())


def make_read() -> CpuFormatReader:
    """Signed vectors, 16 too much; a scale per block of 32."""
    return CpuFormatReader(110, block_bytes=110, block_elements=256, read=_read, groups=2, offset=16)
