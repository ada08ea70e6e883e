"""IQ1_S: blocks of 256 in 50 bytes.

d, 32 indices, 8 words of upper index bits, s, sign; x = d (2s + 1) (c +- 1/8).
"""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq1_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._grids import make_rows_of_8
from graphml_cpu.kernels.formats._groups import CpuFormatReader, take
from graphml_cpu.kernels.formats._unpack import F32x8, block_decoder, floats, rows_of_8
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import (
    constant_table,
    convert,
    f32,
    high_half,
    load,
    load_f16,
    load_u8,
    load_u16,
    low_half,
    select,
    vector,
)

codes = constant_table(iq1_codebook().tobytes())


@inline
def _decoded(at: int, group: int, d: Number) -> Vector:
    table = codes()
    index, head = at + 2 + group * 4, load_u16(at + 34 + group * 2)
    numbers = rows_of_8(
        table,
        load_u8(index) | ((head & 7) << 8),
        load_u8(index + 1) | (((head >> 3) & 7) << 8),
        load_u8(index + 2) | (((head >> 6) & 7) << 8),
        load_u8(index + 3) | (((head >> 9) & 7) << 8),
    )
    shift = f32(-0.125) if head >> 15 else f32(0.125)
    scale = f32(2 * ((head >> 12) & 7) + 1) * d
    return (floats(numbers) + shift) * scale


def make_decode() -> Any:
    """`decode(src, dst, k)`."""
    return block_decoder(50, _decoded)


@inline
def _index(at: int, i: int) -> int:
    upper = (load_u16(at + 34 + 2 * (i >> 2)) >> (3 * (i & 3))) & 7
    return load_u8(at + 2 + i) | (upper << 8)


_I16x8 = vector("i16", 8)
_rows = make_rows_of_8(iq1_codebook(), 1, _index)
_first_scales, _second_scales = take((0, 1, 2, 3)), take((4, 5, 6, 7))


@inline
def _read(at: int) -> Any:
    heads = load(_I16x8, at + 34)
    numbers = (heads >> 12) & 7
    scales = convert(F32x8, numbers + numbers + 1) * load_f16(at)
    eighths = scales * 0.125
    shifts = select(heads < 0, -eighths, eighths)
    return (
        ((_rows(at, 0), _rows(at, 2)), (_first_scales(scales),), low_half(shifts)),
        ((_rows(at, 16), _rows(at, 18)), (_second_scales(scales),), high_half(shifts)),
    )


def make_read() -> CpuFormatReader:
    """Vectors, 1 too much; a scale and a minimum, what the vectors are shifted by, per block of 32."""
    return CpuFormatReader(50, block_bytes=50, block_elements=256, read=_read, groups=2, minima=1, offset=1)
