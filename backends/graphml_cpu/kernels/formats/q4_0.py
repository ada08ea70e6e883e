"""Q4_0: blocks of 32 in 18 bytes: d, 16 bytes of nibbles; x = d (q - 8)."""

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
    around_zero,
    floats,
    low_and_high,
    nibbles,
    signed,
)
from graphml_cpu.simd import (
    f32,
    load,
    load_f16,
    store,
    store_f16,
)


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 32):
            at = src + block * 18
            numbers = signed(nibbles(load(U8x16, at + 2))) - 8
            store(dst + block * 128, floats(numbers) * load_f16(at))

    return decode


def make_encode() -> Any:
    """`encode(src, dst, k)`: the value of largest magnitude of a block, the first of equals, becomes -8."""

    @inline
    def encode(src: int, dst: int, k: int) -> None:
        for block in range(k // 32):
            at, to = src + block * 128, dst + block * 18
            scale, numbers = around_zero(load(F32x32, at), at, f32(8.0))
            store_f16(to, scale)
            store(to + 2, low_and_high(numbers))

    return encode


@inline
def _blocks(a: int, b: int, c: int, d: int) -> Any:
    both = load_quarters(a + 2, b + 2, c + 2, d + 2)
    return (((both & 15, both >> 4), (block_halves(a, b, c, d),), ()),)


def _make_read(rest: bool) -> Any:
    values, scales = make_collect(18, 2, 16, rest), make_collect_halves(18, 0, rest)

    @inline
    def read(at: int, size: int) -> Any:
        both = values(at, size)
        return (((both & 15, both >> 4), (scales(at, size),), ()),)

    return read


def make_read() -> Reader:
    """Four blocks a unit; nibbles, 8 too much."""
    words = make_nibble_words(18, 2, as_they_are)
    return block_reader(18, _make_read, _blocks, halves=1, make_words=words, offset=8)
