"""Rows of float32 in the formats of a KV cache: how `set_rows` writes cells.

The encoder of a block does the same float32 operations in the same order as that of its format in
`graphml_quant`, so that the bytes are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import graphml_quant
import numpy as np
from graphml_quant.iq4_nl import LEVELS, MIDPOINTS, SMALLEST

from graphml_numba.helpers import F32, I32, U32, Array, Number, helper

NUMBERS = 32
"""Numbers of a block, which an encoder wants as scratch."""

BELOW_HALF = np.nextafter(F32(0.5), F32(0))  # see `round_half_away` in graphml_quant
SMALLEST_NORMAL_HALF, LARGEST_HALF = 0x38800000, 0x47800000  # 2^-14 and 2^16 as bits of a float32
INFINITY = 0x7F800000


Encode = Callable[[Array, Array, Array], None]
"""encode(x, row, numbers): float32 x -> a row's words, or a block's bytes; numbers: int32 [NUMBERS]."""


@functools.cache
def cell_format(name: str) -> tuple[type[np.generic], Encode]:
    """The NumPy type that a row of a format is an array of, and its encoder; name: one of `CACHE_DTYPES`."""
    if name == "f32":
        return np.float32, _f32
    if name in ("f16", "bf16"):
        return np.uint16, _f16 if name == "f16" else _bf16
    blocks = {
        "q8_0": _q8_0,
        "q4_0": _around_zero(16),
        "q5_0": _around_zero(32),
        "q4_1": _above_minimum(16),
        "q5_1": _above_minimum(32),
        "iq4_nl": _iq4_nl,
    }
    return np.uint8, _of_blocks(blocks[name], graphml_quant.by_name(name).block_bytes)


def _of_blocks(encode: Encode, n_bytes: int) -> Encode:
    """The encoder of rows of blocks of 32."""

    @helper
    def encode_blocks(x: Array, row: Array, numbers: Array) -> None:
        for block in range(row.shape[0] // n_bytes):
            first, at = block * NUMBERS, block * n_bytes
            encode(x[first : first + NUMBERS], row[at : at + n_bytes], numbers)

    return encode_blocks


# --- single numbers


@helper
def to_half(x: Number) -> Number:
    """float32 -> the bits of the nearest number in half precision, of two the even one."""
    bits = F32(x).view(I32)
    sign, magnitude = (bits >> 16) & 0x8000, bits & 0x7FFFFFFF
    if magnitude > INFINITY:
        rounded = I32(0x7E00)  # NaN
    elif magnitude >= LARGEST_HALF:
        rounded = I32(0x7C00)  # infinity
    elif magnitude < SMALLEST_NORMAL_HALF:
        # Half precision has steps of 2^-24 here, as float32 has from 0.5 to 1: the sum is rounded to them.
        rounded = F32(abs(x) + F32(0.5)).view(I32) - 0x3F000000
    else:
        rounded = (magnitude - (112 << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13
    return sign | rounded


@helper
def to_bfloat16(x: Number) -> Number:
    """float32 -> the bits of the nearest bfloat16, of two the even one; a NaN becomes quiet."""
    bits = np.int64(F32(x).view(U32))
    if bits & 0x7FFFFFFF > INFINITY:
        return (bits >> 16) | 0x40
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@helper
def store_half(x: Number, block: Array, at: int) -> None:
    """Half precision at a byte of a block."""
    bits = to_half(x)
    block[at], block[at + 1] = bits & 255, bits >> 8


@helper
def inverse(x: Number) -> Number:
    """1 / x, and 0 where that is not finite."""
    y = F32(1) / x
    return y if abs(y) < np.inf else F32(0)


@helper
def whole(x: Number, largest: int) -> Number:
    """The whole part of a number from 0 to `largest`; 0 for NaN."""
    return I32(min(x, F32(largest))) if x > F32(0) else I32(0)


# --- rows of numbers, and blocks of 32


@helper
def _f32(x: Array, row: Array, numbers: Array) -> None:
    for i in range(x.shape[0]):
        row[i] = x[i]


@helper
def _f16(x: Array, row: Array, numbers: Array) -> None:
    for i in range(x.shape[0]):
        row[i] = to_half(x[i])


@helper
def _bf16(x: Array, row: Array, numbers: Array) -> None:
    for i in range(x.shape[0]):
        row[i] = to_bfloat16(x[i])


@helper
def largest_of(x: Array) -> Number:
    """The number of largest magnitude, the first of equals; NaN where there is one."""
    largest = x[0]
    for i in range(1, x.shape[0]):
        if largest == largest and not (abs(x[i]) <= abs(largest)):
            largest = x[i]
    return largest + F32(0)  # 0 for -0


@helper
def _q8_0(x: Array, block: Array, numbers: Array) -> None:
    """A scale, 32 signed bytes."""
    scale = abs(largest_of(x)) / F32(127)
    by = inverse(scale)
    store_half(scale, block, 0)
    for i in range(NUMBERS):
        y = x[i] * by
        block[2 + i] = I32(y + np.copysign(BELOW_HALF, y)) & 255 if y == y else 0


def _around_zero(levels: int) -> Encode:
    """q4_0 and q5_0: x = scale * (number - levels / 2); the largest magnitude has the number 0."""
    middle = levels // 2

    @helper
    def encode(x: Array, block: Array, numbers: Array) -> None:
        scale = largest_of(x) / F32(-middle)
        by = inverse(scale)
        store_half(scale, block, 0)
        for i in range(NUMBERS):
            numbers[i] = whole(x[i] * by + F32(middle + 0.5), levels - 1)
        pack(numbers, block[2:], levels == 32)

    return encode


def _above_minimum(levels: int) -> Encode:
    """q4_1 and q5_1: x = scale * number + minimum."""

    @helper
    def encode(x: Array, block: Array, numbers: Array) -> None:
        low = high = x[0]
        for i in range(1, NUMBERS):
            if low == low and not (x[i] >= low):
                low = x[i]
            if high == high and not (x[i] <= high):
                high = x[i]
        scale = (high - low) / F32(levels - 1)
        by = inverse(scale)
        store_half(scale, block, 0)
        store_half(low, block, 2)
        for i in range(NUMBERS):
            numbers[i] = whole((x[i] - low) * by + F32(0.5), levels - 1)
        pack(numbers, block[4:], levels == 32)

    return encode


@helper
def _iq4_nl(x: Array, block: Array, numbers: Array) -> None:
    """x = scale * LEVELS[number]: the nearest levels, then the scale of the least weighted squared error."""
    top = largest_of(x)
    kept = abs(top) >= SMALLEST
    by = inverse(top / LEVELS[0]) if kept else F32(0)
    with_values = with_levels = F32(0)
    for i in range(NUMBERS):
        y, number = x[i] * by, I32(0)
        for middle in MIDPOINTS:
            number += I32(not (y < middle))
        numbers[i] = number
        weighed = x[i] * x[i] * LEVELS[number]
        with_values += weighed * x[i]
        with_levels += weighed * LEVELS[number]
    scale = with_values / with_levels if kept and with_levels > F32(0) else F32(0)
    store_half(scale, block, 0)
    pack(numbers, block[2:], False)


@helper
def pack(numbers: Array, to: Array, has_fifth_bits: bool) -> None:
    """32 numbers: 4 bytes of their fifth bits, if any, and 16 bytes, number i and number i + 16 in byte i."""
    at = 0
    if has_fifth_bits:
        at = 4
        for byte in range(4):
            bits = 0
            for i in range(8):
                bits |= ((numbers[8 * byte + i] >> 4) & 1) << i
            to[byte] = bits
    for i in range(16):
        to[at + i] = (numbers[i] & 15) | ((numbers[i + 16] & 15) << 4)
