"""IQ4_NL: blocks of 32, a float16 scale d and 4-bit indices i into a curve of levels; x = d LEVELS[i]."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, planes, scaled

# kvalues_iq4nl in ggml-common.h: denser around zero, where most weights lie
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 18] bytes to [n, 32]: d, then 16 bytes; low nibbles are the first half of the block."""
    index = planes(blocks[:, 2:], 4).reshape(-1, 32)
    return scaled(np.take(LEVELS, index), half(blocks, 0))


IQ4_NL = Format("iq4_nl", ggml_type=20, block_elements=32, block_bytes=18, decode=decode, activation="q8_0")
