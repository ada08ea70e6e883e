"""Q4_1: float16 scale d and minimum m, then 16 bytes of two 4-bit numbers q; x = d q + m."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import Reader
from graphml_gpu.kernels.formats._words import bytes4, high4, low4, nibble_place, two_words
from graphml_gpu.language import Read, function, u32, unpack_half2


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


Q4_1 = Reader(32, 20, unpack, nibble_place)
