"""Q5_K: blocks of 256 in 176 bytes: the head of Q4_K, 32 bytes of fifth bits, 4 x 32 of nibbles."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._groups import CpuFormatReader, U8x64, broadcast16, rotate_quarters
from graphml_cpu.kernels.formats._unpack import U8x32
from graphml_cpu.kernels.formats._words import by_word, halves_of, run_twice
from graphml_cpu.kernels.formats.q4_k import (
    blocks_of_runs,
    first_minima,
    first_scales,
    group_scales_and_minima,
    nibble_halves,
    read_numbers,
    scales_and_minima,
    second_minima,
    second_scales,
    write_group,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import bitcast, constant_lanes, load, rotate_right, splat, vector


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 256):
            at, to = src + block * 176, dst + block * 1024
            scales, minima = group_scales_and_minima(at)
            fifth = load(U8x32, at + 16)
            for quarter in range(4):
                packed = load(U8x32, at + 48 + quarter * 32)
                low = (packed & 15) | ((fifth << 4) & 16)
                high = (packed >> 4) | ((fifth << 3) & 16)
                write_group(to, low, scales, minima, 2 * quarter)
                write_group(to, high, scales, minima, 2 * quarter + 1)
                fifth = fifth >> 2

    return decode


_fifth_of_first, _fifth_of_second = rotate_quarters((28, 29, 30, 31)), rotate_quarters((0, 1, 2, 3))


@inline
def _with_fifth(low: Vector, fifth: Vector) -> Vector:
    return low | (fifth & 16)


@inline
def _read(at: int) -> Any:
    both = scales_and_minima(at)
    low, high = broadcast16(at + 16), broadcast16(at + 32)
    a, b = nibble_halves(at + 48)
    c, d = nibble_halves(at + 112)
    first = _with_fifth(a, _fifth_of_first(low)), _with_fifth(b, _fifth_of_first(high))
    second = _with_fifth(c, _fifth_of_second(low)), _with_fifth(d, _fifth_of_second(high))
    return (
        (first, (first_scales(both),), first_minima(both)),
        (second, (second_scales(both),), second_minima(both)),
    )


_U32x16 = vector("u32", 16)
# How far the fifth bits of blocks 0 to 3 are rotated; those of blocks 4 to 7 go four further.
_counts_of_low, _counts_of_high = (
    constant_lanes(_U32x16, [count for count in counts for _ in range(4)])
    for counts in ((28, 28, 30, 30), (29, 29, 31, 31))
)


@inline
def _blocks_with_fifth(nibbles: Vector, fifth: Vector, of_low: Vector, of_high: Vector) -> Any:
    """What `blocks_of_runs` gives, each with the bit of its block, rotated right by so many bits."""
    bits = bitcast(_U32x16, fifth)
    low = _with_fifth(nibbles & 15, bitcast(U8x64, rotate_right(bits, of_low)))
    return blocks_of_runs(low, _with_fifth(nibbles >> 4, bitcast(U8x64, rotate_right(bits, of_high))))


@inline
def _read_words(a: int, b: int, c: int, d: int, group: int) -> Any:
    at = 48 + 64 * group
    p, q, r, s = by_word(load(U8x64, a + at), load(U8x64, b + at), load(U8x64, c + at), load(U8x64, d + at))
    t, u, v, w = by_word(run_twice(a + 16), run_twice(b + 16), run_twice(c + 16), run_twice(d + 16))
    further = splat(_U32x16, 4 * group)
    low, high = _counts_of_low() + further, _counts_of_high() + further
    p, q = _blocks_with_fifth(p, t, low, high), _blocks_with_fifth(q, u, low, high)
    return halves_of(p, q, _blocks_with_fifth(r, v, low, high), _blocks_with_fifth(s, w, low, high))


def make_read() -> CpuFormatReader:
    """Five bits as they are; a scale and a minimum per block of 32."""
    return CpuFormatReader(
        176, block_bytes=176, block_elements=256, read=_read, groups=2, minima=1, read_numbers=read_numbers,
        read_words=_read_words,
    )  # fmt: skip
