"""Q5_1: blocks of 32, float16 scale d and minimum m, 5-bit numbers q; x = d q + m."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import (
    any_values,
    as_bytes,
    fifth_bits,
    half,
    interleaved,
    inverse,
    low_and_high,
    planes,
    scaled,
    smallest,
)


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 24] bytes to [n, 32]: d, m, the fifth bits of elements 0 to 31, nibbles as in Q4_1."""
    numbers = planes(blocks[:, 8:], 4).reshape(-1, 32)
    numbers |= interleaved(blocks[:, 4:8], 1) << 4
    values = scaled(numbers, half(blocks, 0))
    values += half(blocks, 2)
    return values


@any_values
def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode [n, 32] to [n, 24] bytes; the smallest value becomes 0 and the largest 31."""
    minimum = smallest(values)
    scale = (values.max(axis=1, keepdims=True) - minimum) / np.float32(31)
    numbers = np.trunc((values - minimum) * inverse(scale) + np.float32(0.5)).astype(np.uint8).clip(0, 31)
    halves = as_bytes(scale, np.float16), as_bytes(minimum, np.float16)
    return np.concatenate([*halves, fifth_bits(numbers), low_and_high(numbers)], axis=1)


Q5_1 = Format(
    "q5_1", ggml_type=7, block_elements=32, block_bytes=24, decode=decode, encode=encode, activation="q8_1"
)
