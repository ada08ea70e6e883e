"""IQ1_M: blocks of 256 in 56 bytes.

32 indices, 16 bytes of upper index bits and signs, 4 words of s and d; as IQ1_S.
"""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq1_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._grids import make_rows_of_8
from graphml_cpu.kernels.formats._groups import CpuFormatReader, U8x64
from graphml_cpu.kernels.formats._unpack import F32x8, F32x16, I8x8, U8x16
from graphml_cpu.kernels.formats.iq1_s import codes
from graphml_cpu.kernels.formats.q6_k import half_scales
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import (
    bitcast,
    constant_lanes,
    convert,
    extract,
    f32,
    load,
    load_u8,
    load_u16,
    select,
    shuffle_by,
    splat,
    store,
    vector,
)

_HALVES, _WORDS = vector("f16", 8), vector("u16", 8)


@inline
def _block_scale(heads: int) -> Number:
    """The float16 whose four nibbles are the top nibbles of the four words at `heads`."""
    a, b, c, d = load_u16(heads), load_u16(heads + 2), load_u16(heads + 4), load_u16(heads + 6)
    half = (a >> 12) | ((b >> 8) & 0xF0) | ((c >> 4) & 0xF00) | (d & 0xF000)
    return extract(convert(F32x8, bitcast(_HALVES, splat(_WORDS, half))), 0)


@inline
def _write_vector(dst: int, table: int, index: int, tail: int, scale: Number) -> None:
    """One codebook vector; `tail` is three upper index bits and the sign of the shift."""
    numbers = load(I8x8, table + (index | ((tail & 7) << 8)) * 8)
    shift = f32(-0.125) if tail & 8 else f32(0.125)
    store(dst, (convert(F32x8, numbers) + shift) * scale)


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        table = codes()
        for block in range(k // 256):
            at, to = src + block * 56, dst + block * 1024
            d = _block_scale(at + 48)
            for group in range(16):
                head = load_u16(at + 48 + group // 4 * 2)
                scale = f32(2 * ((head >> (3 * (group & 3))) & 7) + 1) * d
                tails = load_u8(at + 32 + group)
                _write_vector(to + group * 64, table, load_u8(at + 2 * group), tails & 15, scale)
                _write_vector(to + group * 64 + 32, table, load_u8(at + 2 * group + 1), tails >> 4, scale)

    return decode


@inline
def _index(at: int, i: int) -> int:
    return load_u8(at + i) | (((load_u8(at + 32 + (i >> 1)) >> (4 * (i & 1))) & 7) << 8)


_U16x4, _U16x16, _U64x8 = vector("u16", 4), vector("u16", 16), vector("u64", 8)
# Eight times the vectors plus their shift of 1, so that they are whole.
_rows = make_rows_of_8(8 * iq1_codebook() + 1, 16, _index)
_four_times, _shifts = (
    shuffle_by([lane // 4 for lane in range(16)]),
    constant_lanes(_U16x16, (0, 3, 6, 9) * 4),
)
_sign_bits = constant_lanes(_U64x8, (8, 128) * 4)


def _make_shifted(group: int, half: int) -> Any:
    """An inline function `shifted(values, tails)`: eight vectors, 2 less where their tail says so."""
    pick = shuffle_by([8 * group + half + 2 * block for block in range(4) for _ in range(2)])

    @inline
    def shifted(values: Vector, tails: Vector) -> Vector:
        negative = (convert(_U64x8, pick(tails)) & _sign_bits()) != 0
        return bitcast(U8x64, select(negative, bitcast(_U64x8, values - 2), bitcast(_U64x8, values)))

    return shifted


_first_low, _first_high, _second_low, _second_high = (
    _make_shifted(group, half) for group in (0, 1) for half in (0, 1)
)


@inline
def _read(at: int) -> Any:
    numbers = (_four_times(load(_U16x4, at + 48)) >> _shifts()) & 7
    scales = convert(F32x16, numbers + numbers + 1) * (_block_scale(at + 48) * f32(0.125))
    tails = load(U8x16, at + 32)
    first = _first_low(_rows(at, 0), tails), _first_high(_rows(at, 2), tails)
    second = _second_low(_rows(at, 16), tails), _second_high(_rows(at, 18), tails)
    first_scales, second_scales = half_scales(scales)
    return (first, first_scales, ()), (second, second_scales, ())


def make_read() -> CpuFormatReader:
    """Eight times the shifted vectors, 16 too much; a scale per 16."""
    return CpuFormatReader(56, block_bytes=56, block_elements=256, read=_read, groups=2, scales=2, offset=16)
