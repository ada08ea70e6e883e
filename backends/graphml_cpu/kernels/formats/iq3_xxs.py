"""IQ3_XXS: blocks of 256 in 98 bytes.

d, 64 indices, per group of 32 a word of signs and s; x = d (s + 1/2) / 2 c.
"""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq3_xxs_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._grids import even_signs_of_words, make_grid
from graphml_cpu.kernels.formats._groups import CpuFormatReader, take
from graphml_cpu.kernels.formats._signs import negate_where, signs_of_word
from graphml_cpu.kernels.formats._unpack import F32x8, U8x32, block_decoder, floats, rows_of_4
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import (
    concatenate,
    constant_table,
    convert,
    f32,
    load,
    load_f16,
    load_u8,
    load_u32,
    vector,
)

_codes = constant_table(iq3_xxs_codebook().tobytes())


@inline
def _decoded(at: int, group: int, d: Number) -> Vector:
    codes = _codes()
    i = at + 2 + group * 8
    word = load_u32(at + 66 + group * 4)
    left = rows_of_4(codes, load_u8(i), load_u8(i + 1), load_u8(i + 2), load_u8(i + 3))
    right = rows_of_4(codes, load_u8(i + 4), load_u8(i + 5), load_u8(i + 6), load_u8(i + 7))
    numbers = negate_where(concatenate(left, right), signs_of_word(word))
    scale = d * (f32(0.5) + f32(word >> 28)) * f32(0.5)
    return floats(numbers) * scale


def make_decode() -> Any:
    """`decode(src, dst, k)`."""
    return block_decoder(98, _decoded)


_U16x32, _U32x8 = vector("u16", 32), vector("u32", 8)
_signed_vectors = make_grid(iq3_xxs_codebook(), 64)
_first_scales, _second_scales = take((0, 1, 2, 3)), take((4, 5, 6, 7))


@inline
def _indices(at: int) -> tuple[Vector, Vector]:
    return convert(_U16x32, load(U8x32, at + 2)), convert(_U16x32, load(U8x32, at + 34))


@inline
def _read(at: int) -> Any:
    words = load(_U32x8, at + 66)
    signs = even_signs_of_words(words)
    scales = (convert(F32x8, words >> 28) + 0.5) * (load_f16(at) * f32(0.5))
    first, second = _signed_vectors(_indices(at), signs)
    return (first, (_first_scales(scales),), ()), (second, (_second_scales(scales),), ())


def make_read() -> CpuFormatReader:
    """Signed vectors, 64 too much; a scale per block of 32."""
    return CpuFormatReader(98, block_bytes=98, block_elements=256, read=_read, groups=2, offset=64)
