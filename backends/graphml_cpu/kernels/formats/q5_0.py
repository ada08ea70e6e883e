"""Q5_0: blocks of 32 in 22 bytes: d, 32 fifth bits, 16 bytes of nibbles; x = d (q - 16)."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._block_reader import block_reader, make_collect, make_collect_halves
from graphml_cpu.kernels.formats._groups import Reader, as_mask, bits_at, block_halves, load_quarters
from graphml_cpu.kernels.formats._unpack import (
    F32x32,
    U8x16,
    around_zero,
    bits,
    fifth_bits,
    floats,
    low_and_high,
    nibbles,
    signed,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import f32, load, load_f16, select, store, store_f16


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 32):
            at = src + block * 22
            low = signed(nibbles(load(U8x16, at + 6)))
            numbers = select(bits(at + 2), low, low - 16)
            store(dst + block * 128, floats(numbers) * load_f16(at))

    return decode


def make_encode() -> Any:
    """`encode(src, dst, k)`: the value of largest magnitude of a block, the first of equals, becomes -16."""

    @inline
    def encode(src: int, dst: int, k: int) -> None:
        for block in range(k // 32):
            at, to = src + block * 128, dst + block * 22
            scale, numbers = around_zero(load(F32x32, at), at, f32(16.0))
            store_f16(to, scale)
            store(to + 2, fifth_bits(numbers))
            store(to + 6, low_and_high(numbers))

    return encode


@inline
def _group(both: Vector, low_bits: Vector, high_bits: Vector, scales: Vector) -> Any:
    low, high = both & 15, both >> 4
    values = select(low_bits, low + 16, low), select(high_bits, high + 16, high)
    return ((values, (scales,), ()),)


@inline
def _blocks(a: int, b: int, c: int, d: int) -> Any:
    return _group(
        load_quarters(a + 6, b + 6, c + 6, d + 6),
        bits_at(a + 2, b + 2, c + 2, d + 2),
        bits_at(a + 4, b + 4, c + 4, d + 4),
        block_halves(a, b, c, d),
    )


def _make_read(rest: bool) -> Any:
    nibbles_of, scales = make_collect(22, 6, 16, rest), make_collect_halves(22, 0, rest)
    low_bits, high_bits = make_collect(22, 2, 2, rest), make_collect(22, 4, 2, rest)

    @inline
    def read(at: int, size: int) -> Any:
        low, high = as_mask(low_bits(at, size)), as_mask(high_bits(at, size))
        return _group(nibbles_of(at, size), low, high, scales(at, size))

    return read


def make_read() -> Reader:
    """Four blocks a unit; five bits, 16 too much."""
    return block_reader(22, _make_read, _blocks, halves=1, offset=16)
