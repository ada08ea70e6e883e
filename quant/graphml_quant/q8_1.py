"""Q8_1: Q8_0 with the sum of its values, s = d * sum(q), as a second float16; for activations alone.

A weight format with a minimum (Q4_1, Q5_1) multiplies the minimum with s. Not met in files.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, as_bytes, half, inverse, round_half_away, scaled, words


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 36] bytes to [n, 32]: d, s (not needed here), then 32 numbers."""
    return scaled(words(blocks, 4, 36, np.int8), half(blocks, 0))


@any_values
def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode [n, 32] to [n, 36] bytes, the numbers as in Q8_0; s is taken with the scale before rounding."""
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    numbers = round_half_away(values * inverse(scale)).astype(np.int8)
    total = numbers.sum(axis=1, keepdims=True, dtype=np.int32).astype(np.float32) * scale
    return np.concatenate(
        [as_bytes(scale, np.float16), as_bytes(total, np.float16), numbers.view(np.uint8)], axis=1
    )


Q8_1 = Format("q8_1", ggml_type=9, block_elements=32, block_bytes=36, decode=decode, encode=encode)
