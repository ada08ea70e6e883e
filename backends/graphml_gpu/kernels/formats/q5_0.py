"""Q5_0: a float16 scale d, a word of fifth bits, then as Q4_0; x = d (q - 16)."""

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
    word,
)
from graphml_gpu.language import Read, function, half_at, u32


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Eight bytes: eight elements of the first half of the block and eight of the second."""
    d = half_at(w, at)
    fifth = word(w, at + 2, ALIGN)
    a, b = two_words(w, at + 6 + 8 * part, ALIGN)
    low, high = fifth >> (8 * part), fifth >> (8 * part + 16)
    return (
        (bytes4(low4(a) | (spread4(low) << 4)) - 16.0) * d,
        (bytes4(low4(b) | (spread4(low >> 4) << 4)) - 16.0) * d,
        (bytes4(high4(a) | (spread4(high) << 4)) - 16.0) * d,
        (bytes4(high4(b) | (spread4(high >> 4) << 4)) - 16.0) * d,
    )


@function
def numbers(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """All of a block."""
    d = half_at(w, at)
    fifth = word(w, at + 2, ALIGN)
    a, b, c, e = four_words(w, at + 6, ALIGN)
    low = low_nibbles(a, b, c, e) | fifth_bits(fifth)
    high = high_nibbles(a, b, c, e) | fifth_bits(fifth >> 16)
    return low, high, d, d, -16.0 * d


Q5_0 = Reader(32, 22, unpack, nibble_place, integers=Integers(numbers, only_group))
