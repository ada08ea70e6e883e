"""IQ2_XXS: blocks of 256 in 66 bytes.

d, per group of 32 four indices, a word of signs and s; x = d (s + 1/2) / 4 c.
"""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq2_xxs_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._grids import even_signs_of_words, make_grid
from graphml_cpu.kernels.formats._groups import CpuFormatReader, take
from graphml_cpu.kernels.formats._signs import negate_where, signs_of_word
from graphml_cpu.kernels.formats._unpack import F32x8, U8x32, block_decoder, floats, rows_of_8
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import (
    bitcast,
    constant_table,
    convert,
    f32,
    load,
    load_f16,
    load_u8,
    load_u32,
    shuffle_by,
    vector,
)

_codes = constant_table(iq2_xxs_codebook().tobytes())


@inline
def _decoded(at: int, group: int, d: Number) -> Vector:
    codes = _codes()
    index = at + 2 + group * 8
    word = load_u32(index + 4)
    numbers = rows_of_8(codes, load_u8(index), load_u8(index + 1), load_u8(index + 2), load_u8(index + 3))
    scale = d * (f32(0.5) + f32(word >> 28)) * f32(0.25)
    return floats(negate_where(numbers, signs_of_word(word))) * scale


def make_decode() -> Any:
    """`decode(src, dst, k)`."""
    return block_decoder(66, _decoded)


_U16x32, _U32x16 = vector("u16", 32), vector("u32", 16)
_even_words, _odd_words = shuffle_by(range(0, 16, 2)), shuffle_by(range(1, 16, 2))
_signed_vectors = make_grid(iq2_xxs_codebook(), 64)
_first_scales, _second_scales = take((0, 1, 2, 3)), take((4, 5, 6, 7))


@inline
def _indices(at: int) -> Vector:
    return convert(_U16x32, bitcast(U8x32, _even_words(load(_U32x16, at + 2))))


@inline
def _read(at: int) -> Any:
    words = _odd_words(load(_U32x16, at + 2))
    signs = even_signs_of_words(words)
    scales = (convert(F32x8, words >> 28) + 0.5) * (load_f16(at) * f32(0.25))
    first, second = _signed_vectors(_indices(at), signs)
    return (first, (_first_scales(scales),), ()), (second, (_second_scales(scales),), ())


def make_read() -> CpuFormatReader:
    """Signed vectors, 64 too much; a scale per block of 32."""
    return CpuFormatReader(66, block_bytes=66, block_elements=256, read=_read, groups=2, offset=64)
