"""Q4_1: float16 scale d and minimum m, then 16 bytes of two 4-bit numbers q; x = d q + m."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import Integers, Reader
from graphml_gpu.kernels.formats._words import bytes4, four_words, high4, high_nibbles, low4, low_nibbles, nibble_place, only_group, two_words
from graphml_gpu.language import function, Read, u32, unpack_half2


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Eight bytes: eight elements of the first half of the block and eight of the second."""
    head = unpack_half2(w[at >> 2])
    a, b = two_words(w, at + 4 + 8 * part, ALIGN)
    d, m = head.x, head.y
    return (
        bytes4(low4(a)) * d + m,
        bytes4(low4(b)) * d + m,
        bytes4(high4(a)) * d + m,
        bytes4(high4(b)) * d + m,
    )


@function
def numbers(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """All of a block."""
    head = unpack_half2(w[at >> 2])
    a, b, c, d = four_words(w, at + 4, ALIGN)
    return low_nibbles(a, b, c, d), high_nibbles(a, b, c, d), head.x, head.x, head.y


Q4_1 = Reader(32, 20, unpack, nibble_place, integers=Integers(numbers, only_group))
