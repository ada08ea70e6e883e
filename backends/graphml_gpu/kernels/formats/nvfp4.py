"""NVFP4: 4 scales (E4M3) s of 16 elements, then 4 x 8 bytes of two 4-bit floats (E2M1) f; x = s f."""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats._reader import GpuFormatReader
from graphml_gpu.kernels.formats._words import high4, in_order, low4, two_words
from graphml_gpu.kernels.formats.mxfp4 import doubled4
from graphml_gpu.language import Read, bitcast, byte_at, f32, function, select, u32


@function
def half_of_e4m3(code: u32) -> f32:
    """Half a scale's value: the sign bit is ignored, 0x7F counts as 0."""
    exponent, fraction = (code >> 3) & 15, code & 7
    mantissa = select(exponent == 0, fraction, 8 + fraction)
    value = f32(mantissa) * bitcast(f32, (max(exponent, 1) + 116) << 23)
    return select(code == 127, 0.0, value)


@function
def unpack(w: Read[u32], table: Read[u32], at: u32, part: u32, ALIGN: int) -> Any:
    """The eight bytes of a group: the low nibbles are its first half."""
    d = half_of_e4m3(byte_at(w, at + part))
    a, b = two_words(w, at + 4 + 8 * part, ALIGN)
    return doubled4(low4(a)) * d, doubled4(low4(b)) * d, doubled4(high4(a)) * d, doubled4(high4(b)) * d


NVFP4 = GpuFormatReader(64, 36, unpack, in_order)
