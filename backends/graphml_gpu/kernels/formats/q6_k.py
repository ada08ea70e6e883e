"""Q6_K: 128 bytes of nibbles, 64 of upper bit pairs, 16 signed scales s of 16 each, d; x = d s (q - 32)."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader, Integers
from graphml_gpu.kernels.formats._words import bytes4, eight_words, high4, low4, minus32x4, planes_place, word
from graphml_gpu.language import (
    Read,
    bitcast,
    byte_at,
    f32,
    function,
    half_at,
    i32,
    short_at,
    signed_byte,
    u32,
    u32x4,
)


@function
def group_scale(w: Read[u32], at: u32) -> f32:
    """A signed byte."""
    return f32(bitcast(i32, byte_at(w, at) << 24) >> 24)


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Four bytes of each run: four elements of four groups."""
    half, column = part >> 3, 4 * (part & 7)
    d = half_at(w, at + 208)
    scales = at + 192 + 8 * half + (column >> 4)
    a = word(w, at + 64 * half + column, ALIGN)
    b = word(w, at + 64 * half + 32 + column, ALIGN)
    upper = word(w, at + 128 + 32 * half + column, ALIGN)
    return (
        (bytes4(low4(a) | ((upper << 4) & 0x30303030)) - 32.0) * (group_scale(w, scales) * d),
        (bytes4(low4(b) | ((upper << 2) & 0x30303030)) - 32.0) * (group_scale(w, scales + 2) * d),
        (bytes4(high4(a) | (upper & 0x30303030)) - 32.0) * (group_scale(w, scales + 4) * d),
        (bytes4(high4(b) | ((upper >> 2) & 0x30303030)) - 32.0) * (group_scale(w, scales + 6) * d),
    )


@function
def side_place(part: u32, NUMBER: Any) -> Any:
    """Of part 2 * half + side: group `side` of a half, and the second after it."""
    return 4 * (part >> 1) + (part & 1) + 2 * NUMBER


@function
def numbers(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """32 bytes of nibbles and two bit pairs of 32 bytes: a group and the second after it."""
    half, side = part >> 1, part & 1
    d = half_at(w, at + 208)
    scales = at + 192 + 8 * half + 2 * side
    pair, next_pair = short_at(w, scales), short_at(w, scales + 4)
    first, last = eight_words(w, at + 64 * half + 32 * side, ALIGN)
    upper_first, upper_last = eight_words(w, at + 128 + 32 * half, ALIGN)
    shift, four = u32x4(2 * side), u32x4(4)
    low, two = u32x4(0x0F0F0F0F), u32x4(0x30303030)
    bits_first, bits_last = upper_first >> shift, upper_last >> shift
    return (
        minus32x4((first & low) | ((bits_first << four) & two)),
        minus32x4((last & low) | ((bits_last << four) & two)),
        f32(signed_byte(pair, 0)) * d, f32(signed_byte(pair, 1)) * d, f32(0.0),
        minus32x4(((first >> four) & low) | (bits_first & two)),
        minus32x4(((last >> four) & low) | (bits_last & two)),
        f32(signed_byte(next_pair, 0)) * d, f32(signed_byte(next_pair, 1)) * d, f32(0.0),
    )  # fmt: skip


Q6_K = GpuFormatReader(
    256, 210, unpack, planes_place, integers=Integers(numbers, side_place, groups=2, halves=True)
)
