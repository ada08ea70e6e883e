"""Q5_1: float16 scale d and minimum m, a word of fifth bits, then as Q4_1; x = d q + m."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import Integers, Reader
from graphml_gpu.kernels.formats._words import (
    bytes4,
    fifth_bits,
    four_words,
    high4,
    high_nibbles,
    low4,
    low_nibbles,
    nibble_place,
    only_group,
    spread4,
    two_words,
)
from graphml_gpu.language import Read, function, u32, unpack_half2


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Eight bytes: eight elements of the first half of the block and eight of the second."""
    head = unpack_half2(w[at >> 2])
    fifth = w[(at >> 2) + 1]
    a, b = two_words(w, at + 8 + 8 * part, ALIGN)
    low, high = fifth >> (8 * part), fifth >> (8 * part + 16)
    d, m = head.x, head.y
    return (
        bytes4(low4(a) | (spread4(low) << 4)) * d + m,
        bytes4(low4(b) | (spread4(low >> 4) << 4)) * d + m,
        bytes4(high4(a) | (spread4(high) << 4)) * d + m,
        bytes4(high4(b) | (spread4(high >> 4) << 4)) * d + m,
    )


@function
def numbers(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """All of a block."""
    head = unpack_half2(w[at >> 2])
    fifth = w[(at >> 2) + 1]
    a, b, c, d = four_words(w, at + 8, ALIGN)
    low = low_nibbles(a, b, c, d) | fifth_bits(fifth)
    high = high_nibbles(a, b, c, d) | fifth_bits(fifth >> 16)
    return low, high, head.x, head.x, head.y


Q5_1 = Reader(32, 24, unpack, nibble_place, integers=Integers(numbers, only_group))
