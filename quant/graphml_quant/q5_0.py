"""Q5_0: blocks of 32, a float16 scale d and 5-bit numbers q; x = d (q - 16)."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, interleaved, planes, scaled


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 22] bytes to [n, 32]: d, the fifth bits of elements 0 to 31, then nibbles as in Q4_0."""
    numbers = planes(blocks[:, 6:], 4).reshape(-1, 32)
    numbers |= interleaved(blocks[:, 2:6], 1) << 4
    return scaled(numbers.view(np.int8) - np.int8(16), half(blocks, 0))


Q5_0 = Format("q5_0", ggml_type=6, block_elements=32, block_bytes=22, decode=decode, activation="q8_0")
