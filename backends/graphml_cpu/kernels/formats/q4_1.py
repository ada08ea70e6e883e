"""Q4_1: blocks of 32 in 20 bytes: d, m, 16 bytes of nibbles; x = d q + m."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._block_reader import (
    as_they_are,
    block_reader,
    make_collect,
    make_collect_halves,
    make_nibble_words,
)
from graphml_cpu.kernels.formats._groups import Reader, block_halves, load_quarters
from graphml_cpu.kernels.formats._unpack import (
    F32x32,
    U8x16,
    floats,
    from_least,
    low_and_high,
    nibbles,
)
from graphml_cpu.simd import f32, load, load_f16, store, store_f16


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 32):
            at = src + block * 20
            numbers = nibbles(load(U8x16, at + 4))
            store(dst + block * 128, floats(numbers) * load_f16(at) + load_f16(at + 2))

    return decode


def make_encode() -> Any:
    """`encode(src, dst, k)`: the smallest value of a block becomes 0 and the largest 15."""

    @inline
    def encode(src: int, dst: int, k: int) -> None:
        for block in range(k // 32):
            at, to = src + block * 128, dst + block * 20
            scale, least, numbers = from_least(load(F32x32, at), at, f32(15.0))
            store_f16(to, scale)
            store_f16(to + 2, least)
            store(to + 4, low_and_high(numbers))

    return encode


@inline
def _blocks(a: int, b: int, c: int, d: int) -> Any:
    both = load_quarters(a + 4, b + 4, c + 4, d + 4)
    minima = block_halves(a + 2, b + 2, c + 2, d + 2)
    return (((both & 15, both >> 4), (block_halves(a, b, c, d),), minima),)


def _make_read(rest: bool) -> Any:
    values = make_collect(20, 4, 16, rest)
    scales, minima = make_collect_halves(20, 0, rest), make_collect_halves(20, 2, rest)

    @inline
    def read(at: int, size: int) -> Any:
        both = values(at, size)
        return (((both & 15, both >> 4), (scales(at, size),), minima(at, size)),)

    return read


def make_read() -> Reader:
    """Four blocks a unit; nibbles as they are."""
    words = make_nibble_words(20, 4, as_they_are)
    return block_reader(20, _make_read, _blocks, halves=2, make_words=words)
