"""Q1_0: blocks of 128, a float16 scale d and one bit per element; x = d or -d."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, interleaved, scaled


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 18] bytes to [n, 128]: d, then 16 bytes, the lowest bit first; a set bit is +d."""
    bits = interleaved(blocks[:, 2:], 1).view(np.int8)
    return scaled(2 * bits - np.int8(1), half(blocks, 0))


Q1_0 = Format("q1_0", ggml_type=41, block_elements=128, block_bytes=18, decode=decode, activation="q8_0")
