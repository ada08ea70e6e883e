"""IQ4_XS: blocks of 256 in 136 bytes: d, 2 + 4 bytes of s, 8 x 16 of nibbles i; x = d (s - 32) LEVELS[i]."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import Reader, U8x64, take
from graphml_cpu.kernels.formats._unpack import F32x8, I8x16, U8x16, floats, nibbles
from graphml_cpu.kernels.formats._words import by_word, rows_first
from graphml_cpu.kernels.formats.iq4_nl import level_of, levels
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    constant_lanes,
    convert,
    f32,
    load,
    load_f16,
    load_u16,
    load_u32,
    lookup16,
    splat,
    store,
    vector,
)


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        table = load(I8x16, levels())
        for block in range(k // 256):
            at, to = src + block * 136, dst + block * 1024
            d, upper, lower = load_f16(at), load_u16(at + 2), load_u32(at + 4)
            for group in range(8):
                scale = ((lower >> (4 * group)) & 15) | (((upper >> (2 * group)) & 3) << 4)
                numbers = lookup16(table, nibbles(load(U8x16, at + 8 + group * 16)))
                store(to + group * 128, floats(numbers) * (f32(scale - 32) * d))

    return decode


_I32x8 = vector("i32", 8)
_nibble_of, _pair_of = constant_lanes(_I32x8, range(0, 32, 4)), constant_lanes(_I32x8, range(0, 16, 2))
_first, _second = take((0, 1, 2, 3)), take((4, 5, 6, 7))


@inline
def _values(at: int) -> tuple[Vector, Vector]:
    table, both = load(I8x16, levels()), load(U8x64, at)
    return lookup16(table, both & 15), lookup16(table, both >> 4)


@inline
def _read(at: int) -> Any:
    lower, upper = splat(_I32x8, load_u32(at + 4)), splat(_I32x8, load_u16(at + 2))
    numbers = ((lower >> _nibble_of()) & 15) | (((upper >> _pair_of()) & 3) << 4)
    scales = convert(F32x8, numbers - 32) * load_f16(at)
    return (_values(at + 8), (_first(scales),), ()), (_values(at + 72), (_second(scales),), ())


@inline
def _read_words(a: int, b: int, c: int, d: int, group: int) -> Any:
    at = 8 + 64 * group
    p, q, r, s = by_word(load(U8x64, a + at), load(U8x64, b + at), load(U8x64, c + at), load(U8x64, d + at))
    p, q, r, s = rows_first(p), rows_first(q), rows_first(r), rows_first(s)
    low = level_of(p & 15), level_of(q & 15), level_of(r & 15), level_of(s & 15)
    return low, (level_of(p >> 4), level_of(q >> 4), level_of(r >> 4), level_of(s >> 4))


def make_read() -> Reader:
    """Levels, signed; a scale per block of 32."""
    return Reader(
        136, block_bytes=136, block_elements=256, read=_read, groups=2, signed=True, read_words=_read_words
    )
