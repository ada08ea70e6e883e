"""Numbers in bytes: 16 and 32 bits, half precision, bfloat16. Helpers for kernels of stored formats."""

from __future__ import annotations

from graphml_numba.helpers import F32, I32, I64, U32, Array, Number, helper

TWO_112 = F32(2.0**112)
HALF_INFINITY = F32(65536.0)  # what half precision's largest exponent would be as an ordinary one


@helper
def short(b: Array, at: int) -> Number:
    """The 16 bits at a byte."""
    return I32(b[at]) | (I32(b[at + 1]) << 8)


@helper
def word(b: Array, at: int) -> Number:
    """The 32 bits at a byte."""
    return I64(b[at]) | (I64(b[at + 1]) << 8) | (I64(b[at + 2]) << 16) | (I64(b[at + 3]) << 24)


@helper
def from_half(bits: Number) -> Number:
    """Half precision -> float32.

    Its 15 bits without the sign, moved to the place of a float32's, are the number times 2^-112; of infinity
    and NaN the exponent is filled up.
    """
    magnitude = (I32(bits) & 0x7FFF) << 13
    value = U32(magnitude).view(F32) * TWO_112
    if value >= HALF_INFINITY:
        value = U32(magnitude | 0x7F800000).view(F32)
    return -value if bits & 0x8000 else value


@helper
def from_bfloat16(bits: Number) -> Number:
    """bfloat16 -> float32, whose upper half it is."""
    return U32(U32(bits) << 16).view(F32)


@helper
def half(b: Array, at: int) -> Number:
    """The number in half precision at a byte."""
    return from_half(short(b, at))
