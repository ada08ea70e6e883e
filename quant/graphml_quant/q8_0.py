"""Q8_0: blocks of 32, a float16 scale d and signed 8-bit numbers q; x = d q."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, as_bytes, half, inverse, round_half_away, scaled, words


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 34] bytes to [n, 32]: d, then 32 numbers."""
    return scaled(words(blocks, 2, 34, np.int8), half(blocks, 0))


@any_values
def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode [n, 32] to [n, 34] bytes; the largest magnitude becomes 127, halves round away from zero."""
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    numbers = round_half_away(values * inverse(scale)).astype(np.int8)
    return np.concatenate([as_bytes(scale, np.float16), numbers.view(np.uint8)], axis=1)


Q8_0 = Format(
    "q8_0", ggml_type=8, block_elements=32, block_bytes=34, decode=decode, encode=encode, activation="q8_0"
)
