"""Q1_0: blocks of 128 in 18 bytes: d, 128 bits, the lowest first; x = d for a set bit, else -d."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, U8x64, as_mask, everywhere
from graphml_cpu.kernels.formats._unpack import F32x32, bits
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import load, load_f16, select, shuffle_by, splat, store, vector, zero


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 128):
            at, to = src + block * 18, dst + block * 512
            d = splat(F32x32, load_f16(at))
            for word in range(4):
                store(to + word * 128, select(bits(at + 2 + word * 4), d, -d))

    return decode


_U16x8 = vector("u16", 8)
_low_words, _high_words = shuffle_by((0, 2, 4, 6)), shuffle_by((1, 3, 5, 7))


@inline
def _values(words: Vector) -> Vector:
    return select(as_mask(words), splat(U8x64, 2), zero(U8x64))


@inline
def _read(at: int) -> Any:
    words = load(_U16x8, at + 2)
    values = _values(_low_words(words)), _values(_high_words(words))
    return ((values, (everywhere(load_f16(at)),), ()),)


def make_read() -> CpuFormatReader:
    """Bits as 0 and 2, 1 too much."""
    return CpuFormatReader(18, block_bytes=18, block_elements=128, read=_read, offset=1)
