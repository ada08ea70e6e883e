"""IQ4_XS: blocks of 256 in 136 bytes: d, 2 + 4 bytes of s, 8 x 16 of nibbles i; x = d (s - 32) LEVELS[i]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, U8x64, load_quarters, repeat_halves, take
from graphml_cpu.kernels.formats._unpack import F32x8, I8x16, U8x16, floats, nibbles
from graphml_cpu.kernels.formats._words import by_word, rows_first
from graphml_cpu.kernels.formats.iq4_nl import levels, make_level_of, offset_of_levels
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    bitcast,
    constant_lanes,
    convert,
    f32,
    load,
    load_f16,
    load_u16,
    load_u32,
    lookup16,
    shuffle_by,
    splat,
    store,
    to_float,
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


def _make_read() -> Any:
    level_of = make_level_of()

    @inline
    def values(at: int) -> tuple[Vector, Vector]:
        both = load(U8x64, at)
        return level_of(both & 15), level_of(both >> 4)

    @inline
    def read(at: int) -> Any:
        lower, upper = splat(_I32x8, load_u32(at + 4)), splat(_I32x8, load_u16(at + 2))
        numbers = ((lower >> _nibble_of()) & 15) | (((upper >> _pair_of()) & 3) << 4)
        scales = convert(F32x8, numbers - 32) * load_f16(at)
        return (values(at + 8), (_first(scales),), ()), (values(at + 72), (_second(scales),), ())

    return read


_I32x16 = vector("i32", 16)
# Of the heads of four rows: d and the upper pairs of bits, then the lower nibbles; pairs are put above them.
_upper_words, _lower_words = (shuffle_by([4 * (lane // 4) + word for lane in range(16)]) for word in (0, 1))
_scale_of_row = repeat_halves(0)


def _make_group_scales(group: int) -> Callable[..., Any]:
    blocks = [4 * group + lane % 4 for lane in range(16)]
    nibble_of = constant_lanes(_I32x16, [4 * block for block in blocks])
    pair_of = constant_lanes(_I32x16, [16 + 2 * block - 4 for block in blocks])

    @inline
    def scales(upper: Vector, lower: Vector) -> Vector:
        return to_float((((lower >> nibble_of()) & 15) | ((upper >> pair_of()) & 48)) - 32)

    return scales


_scales_of_first, _scales_of_second = _make_group_scales(0), _make_group_scales(1)


@inline
def _read_numbers(a: int, b: int, c: int, d: int) -> Any:
    heads = load_quarters(a, b, c, d)
    scale, words = _scale_of_row(heads), bitcast(_I32x16, heads)
    upper, lower = _upper_words(words), _lower_words(words)
    first, second = _scales_of_first(upper, lower) * scale, _scales_of_second(upper, lower) * scale
    return ((first,), ()), ((second,), ())


def _make_read_words() -> Any:
    level_of = make_level_of()

    @inline
    def read_words(a: int, b: int, c: int, d: int, group: int) -> Any:
        at = 8 + 64 * group
        p, q, r, s = by_word(
            load(U8x64, a + at), load(U8x64, b + at), load(U8x64, c + at), load(U8x64, d + at)
        )
        p, q, r, s = rows_first(p), rows_first(q), rows_first(r), rows_first(s)
        low = level_of(p & 15), level_of(q & 15), level_of(r & 15), level_of(s & 15)
        return low, (level_of(p >> 4), level_of(q >> 4), level_of(r >> 4), level_of(s >> 4))

    return read_words


def make_read() -> CpuFormatReader:
    """Levels; a scale per block of 32."""
    return CpuFormatReader(
        136, block_bytes=136, block_elements=256, read=_make_read(), groups=2, read_numbers=_read_numbers,
        read_words=_make_read_words(), **offset_of_levels(),
    )  # fmt: skip
