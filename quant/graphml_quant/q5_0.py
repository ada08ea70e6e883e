"""Q5_0: blocks of 32, a float16 scale d and 5-bit numbers q; x = d (q - 16)."""

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
    largest,
    low_and_high,
    planes,
    scaled,
)


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 22] bytes to [n, 32]: d, the fifth bits of elements 0 to 31, then nibbles as in Q4_0."""
    numbers = planes(blocks[:, 6:], 4).reshape(-1, 32)
    numbers |= interleaved(blocks[:, 2:6], 1) << 4
    return scaled(numbers.view(np.int8) - np.int8(16), half(blocks, 0))


@any_values
def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode [n, 32] to [n, 22] bytes; the value of largest magnitude becomes -16."""
    scale = largest(values) / np.float32(-16)
    numbers = np.trunc(values * inverse(scale) + np.float32(16.5)).astype(np.uint8).clip(0, 31)
    return np.concatenate([as_bytes(scale, np.float16), fifth_bits(numbers), low_and_high(numbers)], axis=1)


Q5_0 = Format(
    "q5_0", ggml_type=6, block_elements=32, block_bytes=22, decode=decode, encode=encode, activation="q8_0"
)
