"""Q2_0: blocks of 64 in 18 bytes: d, 16 bytes of four numbers each, the lowest bits first; x = d (q - 1)."""

from __future__ import annotations

from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import U8x16, floats, signed
from graphml_cpu.simd import high_half, load, load_f16, low_half, shuffle_pair_by, store

# Bytes (or pairs of bytes) of two vectors in turn.
_bytes_in_turn = shuffle_pair_by([lane // 2 + lane % 2 * 16 for lane in range(32)])
_pairs_in_turn = shuffle_pair_by([lane // 4 * 2 + lane % 2 + lane % 4 // 2 * 32 for lane in range(64)])


def make_decode() -> Any:
    """`decode(src, dst, k)`."""

    @inline
    def decode(src: int, dst: int, k: int) -> None:
        for block in range(k // 64):
            at, to = src + block * 18, dst + block * 256
            d, packed = load_f16(at), load(U8x16, at + 2)
            first = _bytes_in_turn(packed & 3, (packed >> 2) & 3)
            second = _bytes_in_turn((packed >> 4) & 3, packed >> 6)
            numbers = _pairs_in_turn(first, second)
            store(to, floats(signed(low_half(numbers)) - 1) * d)
            store(to + 128, floats(signed(high_half(numbers)) - 1) * d)

    return decode
