"""Q5_1: blocks of 32, float16 scale d and minimum m, 5-bit numbers q; x = d q + m."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, interleaved, planes, scaled


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 24] bytes to [n, 32]: d, m, the fifth bits of elements 0 to 31, nibbles as in Q4_1."""
    numbers = planes(blocks[:, 8:], 4).reshape(-1, 32)
    numbers |= interleaved(blocks[:, 4:8], 1) << 4
    values = scaled(numbers, half(blocks, 0))
    values += half(blocks, 2)
    return values


Q5_1 = Format("q5_1", ggml_type=7, block_elements=32, block_bytes=24, decode=decode, activation="q8_1")
