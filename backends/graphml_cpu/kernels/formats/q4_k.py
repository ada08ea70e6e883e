"""Q4_K: blocks of 256 in 144 bytes: d, e, 12 bytes of s and m, 4 x 32 of nibbles; x = d s q - e m."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import (
    CpuFormatReader,
    F32x16,
    U8x64,
    load_quarters,
    pick_quarters,
    pick_words,
    repeat_halves,
    shift_quarters,
)
from graphml_cpu.kernels.formats._row_sums import sums_of_runs
from graphml_cpu.kernels.formats._unpack import F32x8, U8x4, U8x32, floats
from graphml_cpu.kernels.formats._words import by_word, halves_of, make_two_runs
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import (
    bitcast,
    concatenate,
    constant_lanes,
    convert,
    extract,
    insert,
    load,
    load_f16,
    shuffle_by,
    splat,
    store,
    to_float,
    vector,
)

F32x4, U32x4, U8x16 = vector("f32", 4), vector("u32", 4), vector("u8", 16)


@inline
def group_scales_and_minima(address: int) -> tuple[Vector, Vector]:
    """D s and e m of the 8 groups of the block at `address`, as in `graphml_quant.q4_k` (Q5_K's too)."""
    a, b, c = load(U8x4, address + 4), load(U8x4, address + 8), load(U8x4, address + 12)
    scales = concatenate(a & 63, (c & 15) | ((a >> 2) & 48))
    minima = concatenate(b & 63, (c >> 4) | ((b >> 2) & 48))
    return convert(F32x8, scales) * load_f16(address), convert(F32x8, minima) * load_f16(address + 2)


@inline
def write_group(dst: int, numbers: Vector, scales: Vector, minima: Vector, group: int) -> None:
    """Write the 32 values of group `group` of a block."""
    store(dst + group * 128, floats(numbers) * extract(scales, group) - extract(minima, group))


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 256):
            at, to = src + block * 144, dst + block * 1024
            scales, minima = group_scales_and_minima(at)
            for quarter in range(4):
                packed = load(U8x32, at + 16 + quarter * 32)
                write_group(to, packed & 15, scales, minima, 2 * quarter)
                write_group(to, packed >> 4, scales, minima, 2 * quarter + 1)

    return decode


_even_quarters, _odd_quarters = pick_quarters((0, 0, 2, 2)), pick_quarters((1, 1, 3, 3))
_low_and_high = shift_quarters((0, 4, 0, 4))
# Of the numbers of `scales_and_minima`, those of the block's two groups of 128 (Q5_K's too).
first_scales, second_scales = shuffle_by((0, 1, 2, 3)), shuffle_by((4, 5, 6, 7))
first_minima, second_minima = shuffle_by((8, 9, 10, 11)), shuffle_by((12, 13, 14, 15))
# Of the words d and e, a, b, c behind `scales_and_minima`'s address: what lies below, what above.
_below, _above = shuffle_by((1, 3, 2, 3)), shuffle_by((1, 1, 2, 2))
_down, _up = constant_lanes(U32x4, (0, 0, 0, 4)), constant_lanes(U32x4, (0, 2, 0, 2))
_low_bits = constant_lanes(U32x4, (0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F))
_high_bits = constant_lanes(U32x4, (0, 0x30303030, 0, 0x30303030))
_of_16 = shuffle_by([0] * 8 + [1] * 8)


@inline
def scales_and_minima(address: int) -> Vector:
    """D s of the 8 groups of the block at `address`, then their - e m: F32x16 (Q5_K's too)."""
    words = load(U32x4, address)
    numbers = ((_below(words) >> _down()) & _low_bits()) | ((_above(words) >> _up()) & _high_bits())
    d, e = load_f16(address), load_f16(address + 2)
    factors = _of_16(insert(splat(F32x4, d), 1, -e))
    return convert(F32x16, bitcast(U8x16, numbers)) * factors


_U32x16 = vector("u32", 16)
# The same for the words of four rows, a quarter each.
_all_below, _all_above = (
    shuffle_by([4 * row + word for row in range(4) for word in words])
    for words in ((1, 3, 2, 3), (1, 1, 2, 2))
)
_all_down, _all_up = (
    constant_lanes(_U32x16, [*bits, *bits, *bits, *bits]) for bits in ((0, 0, 0, 4), (0, 2, 0, 2))
)
_all_low, _all_high = (
    constant_lanes(_U32x16, [*bits, *bits, *bits, *bits])
    for bits in ((0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F), (0, 0x30303030, 0, 0x30303030))
)
_scale_of_row, _minimum_of_row = repeat_halves(0), repeat_halves(2)
_of_first, _of_second, _least_of_first, _least_of_second = (
    pick_words([16 * row + place + block for row in range(4) for block in range(4)])
    for place in (0, 4, 8, 12)
)


@inline
def read_numbers(a: int, b: int, c: int, d: int) -> Any:
    """`CpuFormatReader.read_numbers` of Q4_K and Q5_K."""
    heads = load_quarters(a, b, c, d)
    words = bitcast(_U32x16, heads)
    low = (_all_below(words) >> _all_down()) & _all_low()
    numbers = bitcast(U8x64, low | ((_all_above(words) >> _all_up()) & _all_high()))
    scale, least = _scale_of_row(heads), -_minimum_of_row(heads)
    first = to_float(_of_first(numbers)) * scale, to_float(_least_of_first(numbers)) * least
    second = to_float(_of_second(numbers)) * scale, to_float(_least_of_second(numbers)) * least
    return ((first[0],), (first[1],)), ((second[0],), (second[1],))


@inline
def nibble_halves(at: int) -> tuple[Vector, Vector]:
    """The two vectors of a group from 2 x 32 bytes of nibbles (Q5_K's too)."""
    packed = load(U8x64, at)
    return _low_and_high(_even_quarters(packed)) & 15, _low_and_high(_odd_quarters(packed)) & 15


# Blocks 2 r and 2 r + 1 are the low and the high nibbles of run r (Q5_K's too).
blocks_of_runs = make_two_runs(lambda block: (block % 2, block // 2))


@inline
def _read_words(a: int, b: int, c: int, d: int, group: int) -> Any:
    at = 16 + 64 * group
    p, q, r, s = by_word(load(U8x64, a + at), load(U8x64, b + at), load(U8x64, c + at), load(U8x64, d + at))
    p, q = blocks_of_runs(p & 15, p >> 4), blocks_of_runs(q & 15, q >> 4)
    return halves_of(p, q, blocks_of_runs(r & 15, r >> 4), blocks_of_runs(s & 15, s >> 4))


@inline
def _sums(a: int, b: int, c: int, d: int, group: int, x: int) -> Any:
    at = 16 + 64 * group
    return (sums_of_runs(a + at, b + at, c + at, d + at, x),)


@inline
def _read(at: int) -> Any:
    both = scales_and_minima(at)
    first = nibble_halves(at + 16), (first_scales(both),), first_minima(both)
    return first, (nibble_halves(at + 80), (second_scales(both),), second_minima(both))


def make_read() -> CpuFormatReader:
    """Nibbles as they are; a scale and a minimum per block of 32."""
    return CpuFormatReader(
        144, block_bytes=144, block_elements=256, read=_read, groups=2, minima=1, read_numbers=read_numbers,
        read_words=_read_words, sums=_sums,
    )  # fmt: skip
