"""Q4_0: a float16 scale d, then 16 bytes of two 4-bit numbers q; x = d (q - 8)."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import Integers, Reader
from graphml_gpu.kernels.formats._words import bytes4, four_words, high4, high_nibbles, low4, low_nibbles, nibble_place, only_group, two_words
from graphml_gpu.language import function, half_at, Read, u32


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Eight bytes: eight elements of the first half of the block and eight of the second."""
    d = half_at(w, at)
    a, b = two_words(w, at + 2 + 8 * part, ALIGN)
    return (
        (bytes4(low4(a)) - 8.0) * d,
        (bytes4(low4(b)) - 8.0) * d,
        (bytes4(high4(a)) - 8.0) * d,
        (bytes4(high4(b)) - 8.0) * d,
    )


@function
def numbers(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """All of a block."""
    d = half_at(w, at)
    a, b, c, e = four_words(w, at + 2, ALIGN)
    return low_nibbles(a, b, c, e), high_nibbles(a, b, c, e), d, d, -8.0 * d


Q4_0 = Reader(32, 18, unpack, nibble_place, integers=Integers(numbers, only_group))
