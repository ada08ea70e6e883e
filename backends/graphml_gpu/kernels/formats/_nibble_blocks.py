"""The readers of blocks of 32 nibbles: with a minimum or none, with fifth bits or none.

A block is its scale d, a float16, its minimum m if it has one, a word of fifth bits if it has them, then
16 bytes of two 4-bit numbers; x = d (q - 8 or 16) without a minimum, d q + m with one. Knows this layout;
knows no format's name.
"""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader, Integers
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
from graphml_gpu.language import Read, f32, function, half_at, u32, unpack_half2


def nibble_reader(minimum: bool = False, fifth: bool = False) -> GpuFormatReader:
    """The reader of a layout."""
    bits_at = 4 if minimum else 2
    nibbles_at, half = bits_at + 4 * fifth, 16.0 if fifth else 8.0

    @function
    def head(w: Read[u32], at: u32) -> Any:
        if minimum:
            both = unpack_half2(w[at >> 2])
            return both.x, both.y
        return half_at(w, at), 0.0

    @function
    def bits(w: Read[u32], at: u32, ALIGN: int) -> u32:
        if not fifth:
            return u32(0)
        return w[(at >> 2) + 1] if minimum else word(w, at + bits_at, ALIGN)

    @function
    def quad(numbers: u32, fifths: u32, d: f32, m: f32) -> Any:
        q = numbers | (spread4(fifths) << 4) if fifth else numbers
        return bytes4(q) * d + m if minimum else (bytes4(q) - half) * d

    @function
    def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
        """Eight bytes: eight elements of the first half of the block and eight of the second."""
        d, m = head(w, at)
        of_block = bits(w, at, ALIGN)
        a, b = two_words(w, at + nibbles_at + 8 * part, ALIGN)
        low = of_block >> (8 * part) if fifth else of_block
        high = of_block >> (8 * part + 16) if fifth else of_block
        return (
            quad(low4(a), low, d, m),
            quad(low4(b), low >> 4, d, m),
            quad(high4(a), high, d, m),
            quad(high4(b), high >> 4, d, m),
        )

    @function
    def numbers(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
        """All of a block."""
        d, m = head(w, at)
        of_block = bits(w, at, ALIGN)
        a, b, c, e = four_words(w, at + nibbles_at, ALIGN)
        low, high = low_nibbles(a, b, c, e), high_nibbles(a, b, c, e)
        if fifth:
            low, high = low | fifth_bits(of_block), high | fifth_bits(of_block >> 16)
        return low, high, d, d, m if minimum else -half * d

    return GpuFormatReader(32, nibbles_at + 16, unpack, nibble_place, integers=Integers(numbers, only_group))
