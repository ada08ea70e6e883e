"""Q4_1: blocks of 32, float16 scale d and minimum m, 4-bit numbers q; x = d q + m."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, as_bytes, half, inverse, low_and_high, planes, scaled, smallest


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 20] bytes to [n, 32]: d, m, then 16 bytes; low nibbles are the first half of the block."""
    values = scaled(planes(blocks[:, 4:], 4).reshape(-1, 32), half(blocks, 0))
    values += half(blocks, 2)
    return values


@any_values
def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode [n, 32] to [n, 20] bytes; the smallest value becomes 0 and the largest 15."""
    minimum = smallest(values)
    scale = (values.max(axis=1, keepdims=True) - minimum) / np.float32(15)
    numbers = np.trunc((values - minimum) * inverse(scale) + np.float32(0.5)).astype(np.uint8).clip(0, 15)
    halves = as_bytes(scale, np.float16), as_bytes(minimum, np.float16)
    return np.concatenate([*halves, low_and_high(numbers)], axis=1)


Q4_1 = Format(
    "q4_1", ggml_type=3, block_elements=32, block_bytes=20, decode=decode, encode=encode, activation="q8_1"
)
