"""What the formats of blocks of 32 nibbles share: a minimum or none, fifth bits or none.

A block is its scale d, an IEEE half, then its minimum m if it has one, then 32 fifth bits if it has them,
then 16 bytes whose low nibbles are the first half of the block. x = d (q - 8 or 16) without a minimum,
d q + m with one. Knows this layout; knows no format's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._block_reader import block_reader, make_collect, make_collect_halves
from graphml_cpu.kernels.formats._groups import CpuFormatReader, as_mask, bits_at, block_halves, load_quarters
from graphml_cpu.kernels.formats._unpack import (
    F32x32,
    U8x16,
    around_zero,
    bits,
    fifth_bits,
    floats,
    from_least,
    low_and_high,
    nibbles,
    signed,
)
from graphml_cpu.kernels.formats._words import by_quarter
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import f32, load, load_f16, select, store, store_f16


@dataclass(frozen=True)
class NibbleBlocks:
    """The decoder, encoder and reader of a layout: what `formats` wants of a format's file."""

    minimum: bool = False
    fifth: bool = False

    @property
    def bits_at(self) -> int:
        """The byte of a block at which its fifth bits are, or would be."""
        return 4 if self.minimum else 2

    @property
    def nibbles_at(self) -> int:
        """The byte of a block at which its nibbles are."""
        return self.bits_at + 4 * self.fifth

    def make_decode(self) -> Any:
        """`decode(src, dst, k)`."""
        minimum, fifth, bits_place, nibbles_place = self.minimum, self.fifth, self.bits_at, self.nibbles_at
        n_bytes = nibbles_place + 16

        @inline
        def decode(src: int, dst: int, k: int) -> None:
            for block in range(k // 32):
                at = src + block * n_bytes
                low = nibbles(load(U8x16, at + nibbles_place))
                if minimum:
                    numbers = select(bits(at + bits_place), low | 16, low) if fifth else low
                    store(dst + block * 128, floats(numbers) * load_f16(at) + load_f16(at + 2))
                else:
                    low = signed(low)
                    numbers = select(bits(at + bits_place), low, low - 16) if fifth else low - 8
                    store(dst + block * 128, floats(numbers) * load_f16(at))

        return decode

    def make_encode(self) -> Any:
        """`encode(src, dst, k)`.

        With a minimum the smallest value of a block becomes 0 and the largest 15 or 31. Without, the value of
        largest magnitude, the first of equals, becomes -8 or -16.
        """
        minimum, fifth, bits_place, nibbles_place = self.minimum, self.fifth, self.bits_at, self.nibbles_at
        n_bytes, half = nibbles_place + 16, 16.0 if fifth else 8.0

        @inline
        def encode(src: int, dst: int, k: int) -> None:
            for block in range(k // 32):
                at, to = src + block * 128, dst + block * n_bytes
                if minimum:
                    scale, least, numbers = from_least(load(F32x32, at), at, f32(half + half - 1.0))
                    store_f16(to, scale)
                    store_f16(to + 2, least)
                else:
                    scale, numbers = around_zero(load(F32x32, at), at, f32(half))
                    store_f16(to, scale)
                if fifth:
                    store(to + bits_place, fifth_bits(numbers))
                store(to + nibbles_place, low_and_high(numbers))

        return encode

    def make_read(self) -> CpuFormatReader:
        """Four blocks a unit; the numbers as they are, 8 or 16 too much without a minimum."""
        offset = 0 if self.minimum else 16 if self.fifth else 8
        return nibble_reader(self, offset=offset)


@inline
def _as_they_are(nibbles: Vector) -> Vector:
    return nibbles


def nibble_reader(
    layout: NibbleBlocks, unpack: Callable[..., Any] = _as_they_are, **more: Any
) -> CpuFormatReader:
    """The reader of a layout. unpack: nibbles -> values; more: other fields of the `CpuFormatReader`."""
    minimum, fifth = layout.minimum, layout.fifth
    bits_place, nibbles_place, n_bytes = layout.bits_at, layout.nibbles_at, layout.nibbles_at + 16

    @inline
    def values(both: Vector, low_bits: Any, high_bits: Any) -> tuple[Vector, Vector]:
        low, high = unpack(both & 15), unpack(both >> 4)
        if fifth:
            low, high = select(low_bits, low + 16, low), select(high_bits, high + 16, high)
        return low, high

    @inline
    def blocks(a: int, b: int, c: int, d: int) -> Any:
        p, q = bits_place, nibbles_place
        both = load_quarters(a + q, b + q, c + q, d + q)
        low_bits = bits_at(a + p, b + p, c + p, d + p) if fifth else ()
        high_bits = bits_at(a + p + 2, b + p + 2, c + p + 2, d + p + 2) if fifth else ()
        minima = block_halves(a + 2, b + 2, c + 2, d + 2) if minimum else ()
        return ((values(both, low_bits, high_bits), (block_halves(a, b, c, d),), minima),)

    def make_read(rest: bool) -> Any:
        nibbles_of = make_collect(n_bytes, nibbles_place, 16, rest)
        low_of, high_of = (make_collect(n_bytes, bits_place + half, 2, rest) for half in (0, 2))
        scales, minima = (make_collect_halves(n_bytes, at, rest) for at in (0, 2))

        @inline
        def read(at: int, size: int) -> Any:
            low_bits = as_mask(low_of(at, size)) if fifth else ()
            high_bits = as_mask(high_of(at, size)) if fifth else ()
            numbers = values(nibbles_of(at, size), low_bits, high_bits)
            return ((numbers, (scales(at, size),), minima(at, size) if minimum else ()),)

        return read

    words = None if fifth else make_nibble_words(n_bytes, nibbles_place, unpack)
    return block_reader(n_bytes, make_read, blocks, halves=1 + minimum, make_words=words, **more)


def make_nibble_words(block_bytes: int, offset: int, unpack: Callable[..., Any]) -> Any:
    """A `make_words` of `block_reader`: 16 bytes of nibbles at `offset`, which `unpack` makes values."""

    def make_words(rest: bool) -> Any:
        collect = make_collect(block_bytes, offset, 16, rest, by_word=True)

        @inline
        def words(a: int, b: int, c: int, d: int, size: int) -> Any:
            p, q, r, s = by_quarter(collect(a, size), collect(b, size), collect(c, size), collect(d, size))
            low = unpack(p & 15), unpack(q & 15), unpack(r & 15), unpack(s & 15)
            return low, (unpack(p >> 4), unpack(q >> 4), unpack(r >> 4), unpack(s >> 4))

        return words

    return make_words
