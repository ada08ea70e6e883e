"""IQ1_S: blocks of 256 in 8 groups of 32, four ternary codebook vectors of 8 each; x = d (2s + 1) (c +- 1/8).

A vector has an 11-bit index; a group a 3-bit scale s and the sign of its shift, the block a float16 scale d.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.codebooks import gather, iq1_codebook
from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, scaled, words

# IQ1S_DELTA and IQ1M_DELTA in ggml-common.h
SHIFT = np.float32(0.125)


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 50] bytes to [n, 256]: d, 32 indices, then per group a word: 4 x 3 index bits, s, sign."""
    heads = words(blocks, 34, 50, np.uint16)
    upper = (heads[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    index = (upper << np.uint16(8)).reshape(-1, 32) | blocks[:, 2:34]
    shift = np.where(heads >> np.uint16(15), -SHIFT, SHIFT)
    values = gather(iq1_codebook(), index).reshape(-1, 8, 32).astype(np.float32)
    values += shift[:, :, None]
    scale = scaled(2 * ((heads >> np.uint16(12)) & np.uint16(7)) + np.uint16(1), half(blocks, 0))
    return scaled(values, scale[:, :, None]).reshape(-1, 256)


IQ1_S = Format(
    "iq1_s",
    ggml_type=19,
    block_elements=256,
    block_bytes=50,
    decode=decode,
    activation="q8_k",
    importance="needed",
)
