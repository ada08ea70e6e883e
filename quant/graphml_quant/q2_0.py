"""Q2_0: blocks of 64, a float16 scale d and 2-bit numbers q; x = d (q - 1)."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, interleaved, scaled


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 18] bytes to [n, 64]: d, then 16 bytes of four elements each, the lowest bits first."""
    numbers = interleaved(blocks[:, 2:], 2).view(np.int8)
    return scaled(numbers - np.int8(1), half(blocks, 0))


Q2_0 = Format("q2_0", ggml_type=42, block_elements=64, block_bytes=18, decode=decode, activation="q8_0")
