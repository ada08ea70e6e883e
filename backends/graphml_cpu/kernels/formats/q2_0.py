"""Q2_0: blocks of 64 in 18 bytes: d, 16 bytes of four numbers each, the lowest bits first; x = d (q - 1)."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, U8x64
from graphml_cpu.kernels.formats._unpack import U8x16, floats, signed
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    bitcast,
    convert,
    gather_f16,
    high_half,
    load,
    load_f16,
    low_half,
    shuffle_pair_by,
    store,
    vector,
)

# Bytes (or pairs of bytes) of two vectors in turn.
_bytes_in_turn = shuffle_pair_by([lane // 2 + lane % 2 * 16 for lane in range(32)])
_pairs_in_turn = shuffle_pair_by([lane // 4 * 2 + lane % 2 + lane % 4 // 2 * 32 for lane in range(64)])


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 64):
            at, to = src + block * 18, dst + block * 256
            d, packed = load_f16(at), load(U8x16, at + 2)
            first = _bytes_in_turn(packed & 3, (packed >> 2) & 3)
            second = _bytes_in_turn((packed >> 4) & 3, packed >> 6)
            numbers = _pairs_in_turn(first, second)
            store(to, floats(signed(low_half(numbers)) - 1) * d)
            store(to + 128, floats(signed(high_half(numbers)) - 1) * d)

    return decode


_U32x16 = vector("u32", 16)
# The bytes of weights 0 to 15 of the blocks of 32 in two blocks of 64, and of weights 16 to 31.
_starts = [16 * block + 8 * half for block in (0, 1) for half in (0, 1)]
_low_bytes = shuffle_pair_by([start + i for start in _starts for i in range(4)])
_high_bytes = shuffle_pair_by([start + i for start in _starts for i in range(4, 8)])


@inline
def _values(packed: Vector) -> Vector:
    """Four times two bits of each of 16 bytes, each in a byte of its own."""
    words = convert(_U32x16, packed)
    words = words | (words << 6)
    return bitcast(U8x64, words | (words << 12)) & 3


@inline
def _two_blocks(a: int, b: int) -> Any:
    first, second = load(U8x16, a + 2), load(U8x16, b + 2)
    values = _values(_low_bytes(first, second)), _values(_high_bytes(first, second))
    return ((values, (gather_f16(a, (0, 0, b - a, b - a)),), ()),)


@inline
def _read(at: int) -> Any:
    return _two_blocks(at, at + 18)


@inline
def _read_rest(at: int, blocks: int) -> Any:
    return _two_blocks(at, at)


def make_read() -> CpuFormatReader:
    """Two blocks a unit; two bits, 1 too much."""
    return CpuFormatReader(36, block_bytes=18, block_elements=64, read=_read, read_rest=_read_rest, offset=1)
