"""MXFP4: an 8-bit exponent e, then 16 bytes of two 4-bit floats (E2M1) f; x = 2^(e - 127) f."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import high4, low4, nibble_place, two_words
from graphml_gpu.language import Read, bitcast, byte_at, f32, f32x4, function, select, u32


@function
def doubled(code: u32) -> f32:
    """An E2M1 float times two, a whole number: a nibble of a word of eight."""
    size = f32((0xC8643210 >> (4 * (code & 7))) & 15)
    return select((code & 8) != 0, -size, size)


@function
def doubled4(packed: u32) -> Any:
    """Four floats, one in each byte, times two."""
    return f32x4(
        doubled(packed & 15),
        doubled((packed >> 8) & 15),
        doubled((packed >> 16) & 15),
        doubled((packed >> 24) & 15),
    )


@function
def half_power(exponent: u32) -> f32:
    """2^(exponent - 128); the two smallest are subnormal."""
    return bitcast(f32, select(exponent < 2, 0x00200000 << exponent, (exponent - 1) << 23))


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """Eight bytes: eight elements of the first half of the block and eight of the second."""
    d = half_power(byte_at(w, at))
    a, b = two_words(w, at + 1 + 8 * part, ALIGN)
    return doubled4(low4(a)) * d, doubled4(low4(b)) * d, doubled4(high4(a)) * d, doubled4(high4(b)) * d


MXFP4 = GpuFormatReader(32, 17, unpack, nibble_place)
