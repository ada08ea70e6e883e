"""Decoders of the IQ formats, whose numbers are vectors of a codebook; see the files of `graphml_quant`."""

from __future__ import annotations

from graphml_quant import codebooks
from graphml_quant.iq4_nl import LEVELS

from graphml_numba.helpers import F32, I32, Array, Number, helper
from graphml_numba.kernels.numbers import from_half, half, short, word

IQ2_XXS, IQ2_XS, IQ2_S = codebooks.iq2_xxs_codebook(), codebooks.iq2_xs_codebook(), codebooks.iq2_s_codebook()
IQ3_XXS, IQ3_S, IQ1 = codebooks.iq3_xxs_codebook(), codebooks.iq3_s_codebook(), codebooks.iq1_codebook()
SIGNS, EVEN_SIGNS = codebooks.sign_vectors(), codebooks.even_sign_vectors()
EIGHTH, QUARTER, HALF, ONE = F32(0.125), F32(0.25), F32(0.5), F32(1)


@helper
def nibble(b: Array, at: int, i: int) -> Number:
    """The i-th 4 bits from a byte on."""
    return b[at + i // 2] >> (i % 2 * 4) & 15


@helper
def signed(
    vectors: Array, index: Number, signs: Array, sign_index: Number, scale: Number, out: Array
) -> None:
    """out = a codebook's vector of 8 with signs, scaled."""
    for i in range(8):
        out[i] = F32(I32(vectors[index, i] * signs[sign_index, i])) * scale


@helper
def signed_pair(
    vectors: Array, first: Number, second: Number, signs: Array, sign_index: Number, scale: Number, out: Array
) -> None:
    """out = two of a codebook's vectors of 4 with signs, scaled."""
    for i in range(4):
        out[i] = F32(I32(vectors[first, i] * signs[sign_index, i])) * scale
        out[4 + i] = F32(I32(vectors[second, i] * signs[sign_index, 4 + i])) * scale


@helper
def iq2_xxs(b: Array, out: Array, s: Array) -> None:
    """x = d (s + 1/2) / 4 c: d, then for each group 4 indices, and 4 sign indices with s."""
    d = half(b, 0)
    for group in range(8):
        code = word(b, 6 + 8 * group)
        scale = d * (HALF + F32(code >> 28)) * QUARTER
        for i in range(4):
            index, sign_index = b[2 + 8 * group + i], code >> (7 * i) & 127
            signed(IQ2_XXS, index, EVEN_SIGNS, sign_index, scale, out[32 * group + 8 * i :])


@helper
def iq2_xs(b: Array, out: Array, s: Array) -> None:
    """x = d (s + 1/2) / 4 c: d, 32 words of index and sign index, 8 bytes of s."""
    d = half(b, 0)
    for i in range(32):
        code = short(b, 2 + 2 * i)
        scale = d * (HALF + F32(nibble(b, 66, i // 2))) * QUARTER
        signed(IQ2_XS, code & 511, EVEN_SIGNS, code >> 9, scale, out[8 * i :])


@helper
def iq2_s(b: Array, out: Array, s: Array) -> None:
    """x = d (s + 1/2) / 4 c: d, 32 indices, 32 bytes of signs, 8 of upper index bits, 8 of s."""
    d = half(b, 0)
    for i in range(32):
        index = b[2 + i] + ((b[66 + i // 4] >> (i % 4 * 2) & 3) << 8)
        scale = d * (HALF + F32(nibble(b, 74, i // 2))) * QUARTER
        signed(IQ2_S, index, SIGNS, b[34 + i], scale, out[8 * i :])


@helper
def iq3_xxs(b: Array, out: Array, s: Array) -> None:
    """x = d (s + 1/2) / 2 c: d, 64 indices, then for each group 4 sign indices with s."""
    d = half(b, 0)
    for group in range(8):
        code = word(b, 66 + 4 * group)
        scale = d * (HALF + F32(code >> 28)) * HALF
        for i in range(4):
            first, second = b[2 + 8 * group + 2 * i], b[3 + 8 * group + 2 * i]
            sign_index = code >> (7 * i) & 127
            signed_pair(IQ3_XXS, first, second, EVEN_SIGNS, sign_index, scale, out[32 * group + 8 * i :])


@helper
def iq3_s(b: Array, out: Array, s: Array) -> None:
    """x = d (2 s + 1) c: d, 64 indices, 8 bytes of ninth bits, 32 of signs, 4 of s."""
    d = half(b, 0)
    for i in range(32):
        ninth = b[66 + i // 4] >> (i % 4 * 2)
        first, second = b[2 + 2 * i] + ((ninth & 1) << 8), b[3 + 2 * i] + ((ninth >> 1 & 1) << 8)
        scale = F32(2 * nibble(b, 106, i // 4) + 1) * d
        signed_pair(IQ3_S, first, second, SIGNS, b[74 + i], scale, out[8 * i :])


@helper
def shifted(index: Number, shift: Number, scale: Number, out: Array) -> None:
    """out = a vector of IQ1's codebook, shifted and scaled."""
    for i in range(8):
        out[i] = (F32(IQ1[index, i]) + shift) * scale


@helper
def iq1_s(b: Array, out: Array, s: Array) -> None:
    """x = d (2 s + 1) (c +- 1/8): d, 32 indices, a word of upper index bits, s and sign for each group."""
    d = half(b, 0)
    for i in range(32):
        head = short(b, 34 + 2 * (i // 4))
        index = b[2 + i] + ((head >> (i % 4 * 3) & 7) << 8)
        scale = F32(2 * (head >> 12 & 7) + 1) * d
        shifted(index, -EIGHTH if head >> 15 else EIGHTH, scale, out[8 * i :])


@helper
def iq1_m(b: Array, out: Array, s: Array) -> None:
    """x = d (2 s + 1) (c +- 1/8): 32 indices, 16 bytes of upper index bits and signs, 4 words of s and d."""
    bits = 0
    for i in range(4):
        bits |= short(b, 48 + 2 * i) >> 12 << (4 * i)
    d = from_half(bits)
    for i in range(32):
        group, tail = i // 2, nibble(b, 32, i)
        index = b[i] + ((tail & 7) << 8)
        scale = F32(2 * (short(b, 48 + 2 * (group // 4)) >> (group % 4 * 3) & 7) + 1) * d
        shifted(index, -EIGHTH if tail & 8 else EIGHTH, scale, out[8 * i :])


@helper
def iq4_xs(b: Array, out: Array, s: Array) -> None:
    """x = d (s - 32) LEVELS[i]: d, 2 bytes of upper bits of s, 4 of its nibbles, 8 x 16 of i."""
    d = half(b, 0)
    for group in range(8):
        high = b[2 + group // 4] >> (group % 4 * 2) & 3
        s[group] = F32(I32(nibble(b, 4, group) + (high << 4) - 32)) * d
    for i in range(16):
        for group in range(8):
            numbers, at = b[8 + 16 * group + i], 32 * group + i
            out[at] = LEVELS[numbers & 15] * s[group]
            out[at + 16] = LEVELS[numbers >> 4] * s[group]
