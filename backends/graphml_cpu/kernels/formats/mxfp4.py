"""MXFP4: blocks of 32 in 17 bytes: an exponent e, 16 bytes of nibbles i; x = 2^(e - 128) DOUBLED_E2M1[i]."""

from __future__ import annotations

from typing import Any

from graphml_quant.mxfp4 import DOUBLED_E2M1

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._block_reader import block_reader, make_collect
from graphml_cpu.kernels.formats._groups import CpuFormatReader, bytes_at, load_quarters
from graphml_cpu.kernels.formats._nibble_blocks import make_nibble_words
from graphml_cpu.kernels.formats._unpack import I8x16, U8x16, floats, nibbles
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    bitcast,
    constant_table,
    convert,
    float_from_bits,
    load,
    load_u8,
    lookup16,
    select,
    splat,
    store,
    vector,
)

doubled_e2m1 = constant_table(DOUBLED_E2M1.astype("int8").tobytes())
_doubled_plus_16 = constant_table((DOUBLED_E2M1 + 16).astype("uint8").tobytes())
_F32x4, _U32x4 = vector("f32", 4), vector("u32", 4)


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        table = load(I8x16, doubled_e2m1())
        for block in range(k // 32):
            at = src + block * 17
            exponent = load_u8(at)
            # The two smallest powers are subnormal: one bit of the fraction, and no exponent.
            power = (exponent - 1) << 23 if exponent > 1 else 0x200000 << exponent
            numbers = lookup16(table, nibbles(load(U8x16, at + 1)))
            store(dst + block * 128, floats(numbers) * float_from_bits(power))

    return decode


@inline
def values_plus_16(indices: Vector) -> Vector:
    """The doubled E2M1 of indices from 0 to 15, plus 16 (NVFP4's too)."""
    return lookup16(load(U8x16, _doubled_plus_16()), indices)


@inline
def _powers(exponents: Vector) -> Vector:
    """2^(e - 128) of four bytes e; the two smallest as in `make_decode`."""
    e = convert(_U32x4, exponents)
    return bitcast(_F32x4, select(e > 1, (e - 1) << 23, splat(_U32x4, 0x200000) << e))


@inline
def _blocks(a: int, b: int, c: int, d: int) -> Any:
    both = load_quarters(a + 1, b + 1, c + 1, d + 1)
    values = values_plus_16(both & 15), values_plus_16(both >> 4)
    return ((values, (_powers(bytes_at(a, b, c, d)),), ()),)


def _make_read(rest: bool) -> Any:
    indices, exponents = make_collect(17, 1, 16, rest), make_collect(17, 0, 1, rest)

    @inline
    def read(at: int, size: int) -> Any:
        both = indices(at, size)
        values = values_plus_16(both & 15), values_plus_16(both >> 4)
        return ((values, (_powers(exponents(at, size)),), ()),)

    return read


def make_read() -> CpuFormatReader:
    """Four blocks a unit; doubled numbers, 16 too much."""
    words = make_nibble_words(17, 1, values_plus_16)
    return block_reader(17, _make_read, _blocks, make_words=words, offset=16)
