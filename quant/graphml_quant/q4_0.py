"""Q4_0: blocks of 32, a float16 scale d and 4-bit numbers q; x = d (q - 8)."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, as_bytes, half, inverse, largest, low_and_high, planes, scaled


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 18] bytes to [n, 32]: d, then 16 bytes; low nibbles are the first half of the block."""
    numbers = planes(blocks[:, 2:], 4).reshape(-1, 32)
    return scaled(numbers.view(np.int8) - np.int8(8), half(blocks, 0))


@any_values
def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode [n, 32] to [n, 18] bytes; the value of largest magnitude becomes -8."""
    scale = largest(values) / np.float32(-8)
    numbers = np.trunc(values * inverse(scale) + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    return np.concatenate([as_bytes(scale, np.float16), low_and_high(numbers)], axis=1)


Q4_0 = Format(
    "q4_0", ggml_type=2, block_elements=32, block_bytes=18, decode=decode, encode=encode, activation="q8_0"
)
