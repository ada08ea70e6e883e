"""Q5_0: blocks of 32 in 22 bytes: d, 32 fifth bits, 16 bytes of nibbles; x = d (q - 16)."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import (
    Reader,
    bits_at,
    block_halves,
    load_quarters,
    make_rest,
)
from graphml_cpu.kernels.formats._unpack import U8x16, bits, floats, nibbles, signed
from graphml_cpu.simd import load, load_f16, select, store


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


@inline
def _blocks(a: int, b: int, c: int, d: int) -> Any:
    both = load_quarters(a + 6, b + 6, c + 6, d + 6)
    low, high = both & 15, both >> 4
    low = select(bits_at(a + 2, b + 2, c + 2, d + 2), low + 16, low)
    high = select(bits_at(a + 4, b + 4, c + 4, d + 4), high + 16, high)
    return (((low, high), (block_halves(a, b, c, d),), ()),)


@inline
def _read(at: int) -> Any:
    return _blocks(at, at + 22, at + 44, at + 66)


def make_read() -> Reader:
    """Four blocks a unit; five bits, 16 too much."""
    return Reader(
        88, block_bytes=22, block_elements=32, read=_read, read_rest=make_rest(22, _blocks), offset=16
    )
