"""Decoders of formats with small blocks, mostly of 32 elements; see the files of `graphml_quant`.

A decoder has its format's name: `q4_0(b, out, s)` decodes the bytes b of one block to the float32 out; s is
scratch for scales that it computes first.
"""

from __future__ import annotations

import numpy as np
from graphml_quant import by_name
from graphml_quant.iq4_nl import LEVELS

from graphml_numba.helpers import F32, I32, U32, Array, Number, helper
from graphml_numba.kernels.numbers import half, word

TWO_127 = F32(2.0**127)
HALF_POWERS = np.ldexp(F32(1), np.arange(256) - 128).astype(np.float32)
"""The scales of MXFP4 by their byte."""


def _nvfp4_scales() -> Array:
    """The scales of NVFP4 by their byte: the first element of blocks whose numbers are all 1."""
    blocks = np.full((256, 36), 0x11, np.uint8)
    blocks[:, 0] = np.arange(256)
    return by_name("nvfp4").decode(blocks)[:, 0].copy()


NVFP4_SCALES = _nvfp4_scales()


@helper
def q4_0(b: Array, out: Array, s: Array) -> None:
    """x = d (q - 8): d, then 16 bytes of q, the low nibbles first."""
    d = half(b, 0)
    for i in range(16):
        out[i] = F32(I32((b[2 + i] & 15) - 8)) * d
    for i in range(16):
        out[16 + i] = F32(I32((b[2 + i] >> 4) - 8)) * d


@helper
def q4_1(b: Array, out: Array, s: Array) -> None:
    """x = d q + m: d, m, then 16 bytes of q."""
    d, m = half(b, 0), half(b, 2)
    for i in range(16):
        out[i] = F32(I32(b[4 + i] & 15)) * d + m
    for i in range(16):
        out[16 + i] = F32(I32(b[4 + i] >> 4)) * d + m


@helper
def q5_0(b: Array, out: Array, s: Array) -> None:
    """x = d (q - 16): d, 32 fifth bits, then 16 bytes of low nibbles."""
    d, fifth = half(b, 0), word(b, 2)
    for i in range(16):
        out[i] = F32(I32((b[6 + i] & 15) + ((fifth >> i & 1) << 4) - 16)) * d
    for i in range(16):
        out[16 + i] = F32(I32((b[6 + i] >> 4) + ((fifth >> (16 + i) & 1) << 4) - 16)) * d


@helper
def q5_1(b: Array, out: Array, s: Array) -> None:
    """x = d q + m: d, m, 32 fifth bits, then 16 bytes of low nibbles."""
    d, m, fifth = half(b, 0), half(b, 2), word(b, 4)
    for i in range(16):
        out[i] = F32(I32((b[8 + i] & 15) + ((fifth >> i & 1) << 4))) * d + m
    for i in range(16):
        out[16 + i] = F32(I32((b[8 + i] >> 4) + ((fifth >> (16 + i) & 1) << 4))) * d + m


@helper
def q8_0(b: Array, out: Array, s: Array) -> None:
    """x = d q: d, then 32 signed bytes."""
    d = half(b, 0)
    for i in range(32):
        out[i] = F32(np.int8(b[2 + i])) * d


@helper
def iq4_nl(b: Array, out: Array, s: Array) -> None:
    """x = d LEVELS[i]: d, then 16 bytes of i."""
    d = half(b, 0)
    for i in range(16):
        out[i] = LEVELS[b[2 + i] & 15] * d
    for i in range(16):
        out[16 + i] = LEVELS[b[2 + i] >> 4] * d


@helper
def doubled_e2m1(bits: Number) -> Number:
    """Twice the 4-bit float of 1 sign, 2 exponent and 1 mantissa bits.

    Moved to the place of a float32's they are the number times 2^-126.
    """
    return U32((bits & 7) << 22 | (bits & 8) << 28).view(F32) * TWO_127


@helper
def mxfp4(b: Array, out: Array, s: Array) -> None:
    """x = 2^(e - 127) f: e, then 16 bytes of 4-bit floats."""
    d = HALF_POWERS[b[0]]
    for i in range(16):
        out[i] = doubled_e2m1(b[1 + i]) * d
    for i in range(16):
        out[16 + i] = doubled_e2m1(b[1 + i] >> 4) * d


@helper
def nvfp4(b: Array, out: Array, s: Array) -> None:
    """x = s f: the scales of 4 groups of 16, then 8 bytes of 4-bit floats each."""
    for group in range(4):
        s[group] = NVFP4_SCALES[b[group]]
    for i in range(8):
        for group in range(4):
            numbers, at = b[4 + 8 * group + i], 16 * group + i
            out[at] = doubled_e2m1(numbers) * s[group]
            out[at + 8] = doubled_e2m1(numbers >> 4) * s[group]


@helper
def q1_0(b: Array, out: Array, s: Array) -> None:
    """x = d or -d: d, then 128 bits."""
    d = half(b, 0)
    for byte in range(16):
        for i in range(8):
            out[8 * byte + i] = F32(I32(2 * (b[2 + byte] >> i & 1) - 1)) * d


@helper
def q2_0(b: Array, out: Array, s: Array) -> None:
    """x = d (q - 1): d, then 16 bytes of four numbers each."""
    d = half(b, 0)
    for byte in range(16):
        for i in range(4):
            out[4 * byte + i] = F32(I32((b[2 + byte] >> (2 * i) & 3) - 1)) * d
