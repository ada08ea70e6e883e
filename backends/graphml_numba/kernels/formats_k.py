"""Decoders of formats with blocks of 256 elements and scales of groups; see the files of `graphml_quant`."""

from __future__ import annotations

import numpy as np

from graphml_numba.helpers import F32, I32, Array, Number, helper
from graphml_numba.kernels.numbers import half


@helper
def q2_k(b: Array, out: Array, s: Array) -> None:
    """x = d s q - e m: 16 bytes of s and m, 64 of q, d, e."""
    d, e = half(b, 80), half(b, 82)
    for i in range(16):
        s[i] = F32(I32(b[i] & 15)) * d
        s[16 + i] = F32(I32(b[i] >> 4)) * e
    for quarter in range(4):  # 16 bytes, whose four fields are in four groups
        group = 8 * (quarter // 2) + quarter % 2
        for i in range(16):
            numbers, at = b[16 + 16 * quarter + i], 16 * group + i
            out[at] = F32(I32(numbers & 3)) * s[group] - s[16 + group]
            out[at + 32] = F32(I32(numbers >> 2 & 3)) * s[group + 2] - s[group + 18]
            out[at + 64] = F32(I32(numbers >> 4 & 3)) * s[group + 4] - s[group + 20]
            out[at + 96] = F32(I32(numbers >> 6)) * s[group + 6] - s[group + 22]


@helper
def q3_k(b: Array, out: Array, s: Array) -> None:
    """x = d (s - 32) (q - 4): 32 bytes of third bits, 64 of low bits, 12 of s, d."""
    d = half(b, 108)
    for i in range(16):
        low = b[96 + i % 8] >> (i // 8 * 4) & 15
        high = b[104 + i % 4] >> (i // 4 * 2) & 3
        s[i] = F32(I32(low + (high << 4) - 32)) * d
    for run in range(8):
        byte, shift = 32 + 32 * (run // 4), run % 4 * 2
        for j in range(2):
            scale = s[2 * run + j]
            for i in range(16 * j, 16 * j + 16):
                low, high = b[byte + i] >> shift & 3, b[i] >> run & 1
                out[32 * run + i] = F32(I32(low + (high << 2) - 4)) * scale


@helper
def group_scales(b: Array, s: Array) -> None:
    """The scales of Q4_K's and Q5_K's 8 groups, and behind them their minima."""
    d, e = half(b, 0), half(b, 2)
    for i in range(4):
        s[i] = F32(I32(b[4 + i] & 63)) * d
        s[8 + i] = F32(I32(b[8 + i] & 63)) * e
    for i in range(4):
        s[4 + i] = F32(I32((b[12 + i] & 15) | (b[4 + i] >> 2 & 48))) * d
        s[12 + i] = F32(I32((b[12 + i] >> 4) | (b[8 + i] >> 2 & 48))) * e


@helper
def q4_k(b: Array, out: Array, s: Array) -> None:
    """x = d s q - e m: d, e, 12 bytes of s and m, 4 x 32 bytes of q."""
    group_scales(b, s)
    for pair in range(4):
        scale, minimum = s[2 * pair], s[8 + 2 * pair]
        for i in range(32):
            out[64 * pair + i] = F32(I32(b[16 + 32 * pair + i] & 15)) * scale - minimum
        scale, minimum = s[2 * pair + 1], s[9 + 2 * pair]
        for i in range(32):
            out[64 * pair + 32 + i] = F32(I32(b[16 + 32 * pair + i] >> 4)) * scale - minimum


@helper
def q5_k(b: Array, out: Array, s: Array) -> None:
    """x = d s q - e m: as Q4_K, with 32 bytes of fifth bits before q."""
    group_scales(b, s)
    for group in range(8):
        scale, minimum = s[group], s[8 + group]
        for i in range(32):
            low = b[48 + 32 * (group // 2) + i] >> (group % 2 * 4) & 15
            high = b[16 + i] >> group & 1
            out[32 * group + i] = F32(I32(low + (high << 4))) * scale - minimum


@helper
def q6_k(b: Array, out: Array, s: Array) -> None:
    """x = d s (q - 32): 2 x 64 bytes of low nibbles, 2 x 32 of upper bits, 16 of s, d."""
    d = half(b, 208)
    for i in range(16):
        s[i] = F32(np.int8(b[192 + i])) * d
    for run in range(8):
        low_byte, low_shift = 64 * (run // 4) + 32 * (run % 2), run // 2 % 2 * 4
        high_byte, high_shift = 128 + 32 * (run // 4), run % 4 * 2
        for j in range(2):
            scale = s[2 * run + j]
            for i in range(16 * j, 16 * j + 16):
                low, high = b[low_byte + i] >> low_shift & 15, b[high_byte + i] >> high_shift & 3
                out[32 * run + i] = F32(I32(low + (high << 4) - 32)) * scale


@helper
def tq1_0(b: Array, out: Array, s: Array) -> None:
    """x = d (t - 1): bytes of five digits t in base 3, at the end of four, then d."""
    d = half(b, 52)
    power = 1  # of 3: it moves a byte's next digit to the top
    for place in range(5):
        for i in range(32):
            out[32 * place + i] = digit(b[i], power) * d
        for i in range(16):
            out[160 + 16 * place + i] = digit(b[32 + i], power) * d
        if place < 4:
            for i in range(4):
                out[240 + 4 * place + i] = digit(b[48 + i], power) * d
        power *= 3


@helper
def digit(byte: Number, power: int) -> Number:
    """The top digit of five in base 3, less 1."""
    return F32(I32(((byte * power & 255) * 3 >> 8) - 1))


@helper
def tq2_0(b: Array, out: Array, s: Array) -> None:
    """x = d (q - 1): 2 x 32 bytes of four numbers each, then d."""
    d = half(b, 64)
    for run in range(8):
        for i in range(32):
            out[32 * run + i] = F32(I32((b[32 * (run // 4) + i] >> (run % 4 * 2) & 3) - 1)) * d
