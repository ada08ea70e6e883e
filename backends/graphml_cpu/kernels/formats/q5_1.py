"""Q5_1: blocks of 32 in 24 bytes: d, m, 32 fifth bits, 16 bytes of nibbles; x = d q + m."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._block_reader import block_reader, make_collect, make_collect_halves
from graphml_cpu.kernels.formats._groups import Reader, as_mask, bits_at, block_halves, load_quarters
from graphml_cpu.kernels.formats._unpack import (
    F32x32,
    U8x16,
    bits,
    fifth_bits,
    floats,
    from_least,
    low_and_high,
    nibbles,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    f32,
    load,
    load_f16,
    select,
    store,
    store_f16,
)


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 32):
            at = src + block * 24
            low = nibbles(load(U8x16, at + 8))
            numbers = select(bits(at + 4), low | 16, low)
            store(dst + block * 128, floats(numbers) * load_f16(at) + load_f16(at + 2))

    return decode


def make_encode() -> Any:
    """`encode(src, dst, k)`: the smallest value of a block becomes 0 and the largest 31."""

    @inline
    def encode(src: int, dst: int, k: int) -> None:
        for block in range(k // 32):
            at, to = src + block * 128, dst + block * 24
            scale, least, numbers = from_least(load(F32x32, at), at, f32(31.0))
            store_f16(to, scale)
            store_f16(to + 2, least)
            store(to + 4, fifth_bits(numbers))
            store(to + 8, low_and_high(numbers))

    return encode


@inline
def _group(both: Vector, low_bits: Vector, high_bits: Vector, scales: Vector, minima: Any) -> Any:
    low, high = both & 15, both >> 4
    values = select(low_bits, low + 16, low), select(high_bits, high + 16, high)
    return ((values, (scales,), minima),)


@inline
def _blocks(a: int, b: int, c: int, d: int) -> Any:
    return _group(
        load_quarters(a + 8, b + 8, c + 8, d + 8),
        bits_at(a + 4, b + 4, c + 4, d + 4),
        bits_at(a + 6, b + 6, c + 6, d + 6),
        block_halves(a, b, c, d),
        block_halves(a + 2, b + 2, c + 2, d + 2),
    )


def _make_read(rest: bool) -> Any:
    nibbles_of = make_collect(24, 8, 16, rest)
    low_bits, high_bits = make_collect(24, 4, 2, rest), make_collect(24, 6, 2, rest)
    scales, minima = make_collect_halves(24, 0, rest), make_collect_halves(24, 2, rest)

    @inline
    def read(at: int, size: int) -> Any:
        low, high = as_mask(low_bits(at, size)), as_mask(high_bits(at, size))
        return _group(nibbles_of(at, size), low, high, scales(at, size), minima(at, size))

    return read


def make_read() -> Reader:
    """Four blocks a unit; five bits as they are."""
    return block_reader(24, _make_read, _blocks, halves=2)
