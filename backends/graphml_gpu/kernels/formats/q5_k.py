"""Q5_K: the head of Q4_K, 32 bytes of fifth bits, then 4 x 32 bytes of nibbles; x = d s q - e m."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader, Integers
from graphml_gpu.kernels.formats._words import bytes4, high4, low4, two_words
from graphml_gpu.kernels.formats.q4_k import group_scale, pair_place, pair_scales, pairs_place
from graphml_gpu.language import Read, function, u32, u32x4


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Eight bytes: eight elements of a group, and eight of the next."""
    pair, column = part >> 2, 8 * (part & 3)
    scale, minimum = group_scale(w, at, 2 * pair)
    next_scale, next_minimum = group_scale(w, at, 2 * pair + 1)
    a, b = two_words(w, at + 48 + 32 * pair + column, ALIGN)
    fifth_a, fifth_b = two_words(w, at + 16 + column, ALIGN)
    low_a, low_b = (fifth_a >> (2 * pair)) << 4, (fifth_b >> (2 * pair)) << 4
    high_a, high_b = (fifth_a >> (2 * pair)) << 3, (fifth_b >> (2 * pair)) << 3
    return (
        bytes4(low4(a) | (low_a & 0x10101010)) * scale - minimum,
        bytes4(low4(b) | (low_b & 0x10101010)) * scale - minimum,
        bytes4(high4(a) | (high_a & 0x10101010)) * next_scale - next_minimum,
        bytes4(high4(b) | (high_b & 0x10101010)) * next_scale - next_minimum,
    )


@function
def numbers(w: Read[u32x4], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """32 bytes of nibbles and two bits of 32 bytes: a group and the next."""
    begin = at >> 4
    scale, next_scale, offset, next_offset = pair_scales(w[begin], part)
    first, last = w[begin + 3 + 2 * part], w[begin + 4 + 2 * part]
    shift = u32x4(2 * part)
    fifth_first, fifth_last = w[begin + 1] >> shift, w[begin + 2] >> shift
    low, fifth, three, four = u32x4(0x0F0F0F0F), u32x4(0x10101010), u32x4(3), u32x4(4)
    return (
        (first & low) | ((fifth_first << four) & fifth), (last & low) | ((fifth_last << four) & fifth),
        scale, scale, offset,
        ((first >> four) & low) | ((fifth_first << three) & fifth),
        ((last >> four) & low) | ((fifth_last << three) & fifth),
        next_scale, next_scale, next_offset,
    )  # fmt: skip


Q5_K = GpuFormatReader(
    256, 176, unpack, pairs_place, integers=Integers(numbers, pair_place, groups=2, wide=True)
)
