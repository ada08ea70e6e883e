"""Levels of blocks, a byte each -> the bits of encoded blocks; formats choose the order."""

from __future__ import annotations

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._lanes import LANES, U8
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, load, store, zero


@inline
def pack_bit(levels: int, bit: int, out: int) -> None:
    """One bit of 256 bytes -> 32 bytes: of elements i, 32 + i, ..., 224 + i."""
    for i in range(32):
        packed = zero(U8)
        for plane in range(8):
            packed = (packed >> 1) | ((load(U8, levels + (plane * 32 + i) * LANES) >> bit) << 7)
        store(out + i * LANES, packed)


@inline
def pack_quarters(levels: int, out: int) -> None:
    """Two bits of 256 bytes -> 64 bytes: of each half of a block, element i, 32 + i, 64 + i and 96 + i."""
    for part in range(2):
        for i in range(32):
            packed = zero(U8)
            for plane in range(4):
                packed = (packed >> 2) | (load(U8, levels + (part * 128 + plane * 32 + i) * LANES) << 6)
            store(out + (part * 32 + i) * LANES, packed)


@inline
def pack_nibbles(levels: int, half: int, out: int) -> None:
    """Low nibbles of 2 * half bytes -> `half` bytes: of elements i and half + i."""
    for i in range(half):
        first, second = load(U8, levels + i * LANES), load(U8, levels + (half + i) * LANES)
        store(out + i * LANES, (first & 15) | (second << 4))


@inline
def pack_neighbours(levels: int, n: int, out: int) -> None:
    """Low nibbles of 2 * n bytes -> n bytes: of elements 2 i and 2 i + 1."""
    for i in range(n):
        first, second = load(U8, levels + 2 * i * LANES), load(U8, levels + (2 * i + 1) * LANES)
        store(out + i * LANES, (first & 15) | (second << 4))


@inline
def pack_six_bits(levels: int, n: int, low: int, high: int) -> None:
    """4 * n bytes below 64 -> 2 * n bytes of low nibbles, and n of what is above them."""
    pack_nibbles(levels, 2 * n, low)
    for i in range(n):
        upper = zero(U8)
        for part in range(4):
            upper = (upper >> 2) | ((load(U8, levels + (part * n + i) * LANES) >> 4) << 6)
        store(high + i * LANES, upper)


@inline
def store_word(value: Vector, n: int, out: int) -> None:
    """The n lowest bytes."""
    for i in range(n):
        store(out + i * LANES, convert(U8, value >> (8 * i)))
