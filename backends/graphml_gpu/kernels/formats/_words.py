"""Words and small numbers out of packed bytes, for the readers of formats. Knows no single format."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from graphml_gpu.language import (
    Read,
    Vector,
    bf16_high,
    bf16_low,
    byte_at,
    count_bits,
    f32,
    f32x4,
    function,
    select,
    u32,
    u32x4,
    unpack_half2,
    unpack_i8x4,
    unpack_u8x4,
)


def packed_bytes(values: Any) -> tuple[int, ...]:
    """Whole numbers (-128 to 255) as words of four bytes, the first lowest; as many as fill whole words."""
    return tuple(int(word) for word in np.asarray(values).astype(np.int64).astype(np.uint8).view("<u4"))


@functools.cache
def codebook_words(codebook: Callable[[], Any]) -> Callable[[], Any]:
    """A codebook int8 [n, 4 or 8] as words for a reader's table, one or two a vector; one for each."""

    def words() -> Any:
        return np.ascontiguousarray(codebook()).view("<u4").reshape(-1)

    return words


@function
def joined(low: u32, high: u32, shift: u32) -> u32:
    """The word that begins `shift` bits (a multiple of 8 below 32) up in `low` and goes on in `high`."""
    return (low >> shift) | ((high << 1) << (31 - shift))


@function
def word(w: Read[u32], at: u32, ALIGN: int) -> u32:
    """Four bytes from byte `at`, a multiple of ALIGN; no word is read that holds none of them."""
    if ALIGN == 4:
        return w[at >> 2]
    return joined(w[at >> 2], w[(at + 3) >> 2], (at & 3) << 3)


@function
def two_words(w: Read[u32], at: u32, ALIGN: int) -> tuple[u32, u32]:
    """Eight bytes from byte `at`, a multiple of ALIGN."""
    first = at >> 2
    if ALIGN == 4:
        return w[first], w[first + 1]
    shift = (at & 3) << 3
    a, b, c = w[first], w[first + 1], w[(at + 7) >> 2]
    return joined(a, b, shift), joined(b, c, shift)


@function
def four_words(w: Read[u32], at: u32, ALIGN: int) -> tuple[u32, u32, u32, u32]:
    """Sixteen bytes from byte `at`, a multiple of ALIGN."""
    first = at >> 2
    if ALIGN == 4:
        return w[first], w[first + 1], w[first + 2], w[first + 3]
    shift = (at & 3) << 3
    a, b, c, d, e = w[first], w[first + 1], w[first + 2], w[first + 3], w[(at + 15) >> 2]
    return joined(a, b, shift), joined(b, c, shift), joined(c, d, shift), joined(d, e, shift)


@function
def eight_words(w: Read[u32], at: u32, ALIGN: int) -> Any:
    """Thirty-two bytes from byte `at`, a multiple of ALIGN (2 or 4)."""
    first = at >> 2
    a, b, c, d = w[first], w[first + 1], w[first + 2], w[first + 3]
    e, f, g, h = w[first + 4], w[first + 5], w[first + 6], w[first + 7]
    if ALIGN == 4:
        return u32x4(a, b, c, d), u32x4(e, f, g, h)
    assert ALIGN == 2, f"wanted blocks at multiples of 2 bytes, got {ALIGN}"
    i, odd = w[(at + 31) >> 2], at & 2
    return (
        u32x4(upper_half(a, b, odd), upper_half(b, c, odd), upper_half(c, d, odd), upper_half(d, e, odd)),
        u32x4(upper_half(e, f, odd), upper_half(f, g, odd), upper_half(g, h, odd), upper_half(h, i, odd)),
    )


@function
def upper_half(low: u32, high: u32, odd: u32) -> u32:
    """The word that begins in the middle of `low` where `odd` is not 0, else `low`."""
    return select(odd != 0, (low >> 16) | (high << 16), low)


@function
def bytes4(packed: u32) -> Vector[f32]:
    """The four bytes of a word, lowest first, as numbers."""
    return f32x4(unpack_u8x4(packed))


@function
def signed4(packed: u32) -> Vector[f32]:
    """The four signed bytes of a word, lowest first, as numbers."""
    return f32x4(unpack_i8x4(packed))


@function
def low4(packed: u32) -> u32:
    """The low nibble of each byte, in its byte."""
    return packed & 0x0F0F0F0F


@function
def high4(packed: u32) -> u32:
    """The high nibble of each byte, in its byte."""
    return (packed >> 4) & 0x0F0F0F0F


@function
def spread4(bits: u32) -> u32:
    """Bits 0 to 3, each the lowest of its byte."""
    return ((bits & 15) * 0x00204081) & 0x01010101


@function
def low_nibbles(a: u32, b: u32, c: u32, d: u32) -> Vector[int]:
    """The low nibbles of sixteen bytes."""
    return u32x4(low4(a), low4(b), low4(c), low4(d))


@function
def high_nibbles(a: u32, b: u32, c: u32, d: u32) -> Vector[int]:
    """The high nibbles of sixteen bytes."""
    return u32x4(high4(a), high4(b), high4(c), high4(d))


@function
def fifth_bits(bits: u32) -> Vector[int]:
    """Bits 0 to 15, each the fifth of a byte."""
    return u32x4(
        spread4(bits) << 4, spread4(bits >> 4) << 4, spread4(bits >> 8) << 4, spread4(bits >> 12) << 4
    )


@function
def minus32x4(packed: Vector[int]) -> Vector[int]:
    """Sixteen bytes of 0 to 63 as signed ones, less 32: no byte borrows from the next."""
    top = u32x4(0x80808080)
    return ((packed | top) - u32x4(0x20202020)) ^ top


@function
def only_group(part: u32, NUMBER: Any) -> Any:
    """The place of the group of a format whose blocks are one."""
    return u32(0)


@function
def nibble_at(w: Read[u32], first: u32, i: u32) -> u32:
    """Nibble i of the bytes from `first` on, the low one of each first."""
    return (byte_at(w, first + (i >> 1)) >> (4 * (i & 1))) & 15


@function
def even_signs(index: u32) -> u32:
    """The eight sign bits of a 7-bit sign index in the low bits: the eighth makes their number even."""
    seven = index & 127
    return seven | ((count_bits(seven) & 1) << 7)


@function
def nibble_place(part: u32, QUAD: Any) -> Any:
    """Where quads stand in blocks whose bytes' low nibbles are the first 16 of 32 elements."""
    return 8 * part + 4 * (QUAD & 1) + 16 * (QUAD >> 1)


@function
def in_order(part: u32, QUAD: Any) -> Any:
    """Where quads stand that are unpacked in order."""
    return 16 * part + 4 * QUAD


@function
def planes_place(part: u32, QUAD: Any) -> Any:
    """Where quads stand in blocks of 256 whose bytes hold four fields, of elements 32 apart."""
    return ((part >> 3) << 7) + 4 * (part & 7) + 32 * QUAD


@function
def signs4(values: Vector[f32], bits: u32) -> Vector[f32]:
    """Four values, negated where bits 0 to 3 are set."""
    return f32x4(
        select((bits & 1) != 0, -values.x, values.x),
        select((bits & 2) != 0, -values.y, values.y),
        select((bits & 4) != 0, -values.z, values.z),
        select((bits & 8) != 0, -values.w, values.w),
    )


@function
def signed_vectors(table: Read[u32], first: u32, second: u32, signs: u32, more: u32, scale: f32) -> Any:
    """Two vectors of 8 of a codebook as quads, negated where 8 bits of signs (and more) are set, scaled."""
    return (
        signs4(signed4(table[2 * first]), signs) * scale,
        signs4(signed4(table[2 * first + 1]), signs >> 4) * scale,
        signs4(signed4(table[2 * second]), more) * scale,
        signs4(signed4(table[2 * second + 1]), more >> 4) * scale,
    )


@function
def shifted_vectors(table: Read[u32], first: u32, second: u32, shift: f32, more: f32, scale: f32) -> Any:
    """Two vectors of 8 of a codebook as quads, each with a shift (and more) of its own, scaled."""
    return (
        (signed4(table[2 * first]) + shift) * scale,
        (signed4(table[2 * first + 1]) + shift) * scale,
        (signed4(table[2 * second]) + more) * scale,
        (signed4(table[2 * second + 1]) + more) * scale,
    )


@function
def unpack_f16(low: u32, high: u32) -> Vector[float]:
    """Four halves of two words."""
    first, second = unpack_half2(low), unpack_half2(high)
    return f32x4(first.x, first.y, second.x, second.y)


@function
def unpack_bf16(low: u32, high: u32) -> Vector[float]:
    """Four bfloat16 of two words."""
    return f32x4(bf16_low(low), bf16_high(low), bf16_low(high), bf16_high(high))


@function
def unpack_sixteen(w: Read[u32], at: u32, ALIGN: int, UNPACK: Callable[..., Any]) -> Any:
    """Sixteen numbers of two bytes each from byte `at`, a multiple of ALIGN; UNPACK: four of two words."""
    a, b, c, d = four_words(w, at, ALIGN)
    e, f, g, h = four_words(w, at + 16, ALIGN)
    return UNPACK(a, b), UNPACK(c, d), UNPACK(e, f), UNPACK(g, h)
