"""IQ2_XS: blocks of 256 in 74 bytes.

d, 32 words of index and sign index, 8 bytes of s; x = d (s + 1/2) / 4 c.
"""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq2_xs_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._grids import even_signs as complete_signs
from graphml_cpu.kernels.formats._grids import make_grid
from graphml_cpu.kernels.formats._groups import CpuFormatReader, take
from graphml_cpu.kernels.formats._signs import even_signs, negate_where
from graphml_cpu.kernels.formats._unpack import F32x8, U8x8, U8x32, block_decoder, floats, pair_of, rows_of_8
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import constant_table, convert, f32, load, load_f16, load_u8, load_u16, vector

_codes = constant_table(iq2_xs_codebook().tobytes())


@inline
def scales_of_halves(numbers: int, d: Number) -> Vector:
    """The scales of 16 and 16 weights from a byte of two numbers s, and d (IQ2_S's too)."""
    return pair_of(
        d * (f32(0.5) + f32(numbers & 15)) * f32(0.25), d * (f32(0.5) + f32(numbers >> 4)) * f32(0.25)
    )


@inline
def _decoded(at: int, two_groups: int, d: Number) -> Vector:
    codes, signs = _codes(), even_signs()
    words, scales = at + 2 + two_groups * 8, load_u8(at + 66 + two_groups)
    a, b, c, e = load_u16(words), load_u16(words + 2), load_u16(words + 4), load_u16(words + 6)
    numbers = rows_of_8(codes, a & 511, b & 511, c & 511, e & 511)
    numbers = negate_where(numbers, rows_of_8(signs, a >> 9, b >> 9, c >> 9, e >> 9))
    return floats(numbers) * scales_of_halves(scales, d)


def make_decode() -> Any:
    """`decode(src, dst, k)`."""
    return block_decoder(74, _decoded)


_U16x32 = vector("u16", 32)
_signed_vectors = make_grid(iq2_xs_codebook(), 64)
_of_first, _of_second = take((0, 1, 2, 3)), take((4, 5, 6, 7))


@inline
def half_scales(numbers: Vector, d: Number) -> tuple[tuple[Vector, Vector], tuple[Vector, Vector]]:
    """The scales of a block's groups from 8 bytes of two numbers s, and d (IQ2_S's too)."""
    low, high = (convert(F32x8, numbers & 15) + 0.5) * d, (convert(F32x8, numbers >> 4) + 0.5) * d
    return (_of_first(low), _of_first(high)), (_of_second(low), _of_second(high))


@inline
def _indices(at: int) -> Vector:
    return load(_U16x32, at + 2) & 511


@inline
def _read(at: int) -> Any:
    signs = complete_signs(convert(U8x32, load(_U16x32, at + 2) >> 9))
    first_scales, second_scales = half_scales(load(U8x8, at + 66), load_f16(at) * f32(0.25))
    first, second = _signed_vectors(_indices(at), signs)
    return (first, first_scales, ()), (second, second_scales, ())


def make_read() -> CpuFormatReader:
    """Signed vectors, 64 too much; a scale per 16."""
    return CpuFormatReader(74, block_bytes=74, block_elements=256, read=_read, groups=2, scales=2, offset=64)
