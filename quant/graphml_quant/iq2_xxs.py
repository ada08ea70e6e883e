"""IQ2_XXS: blocks of 256 in 8 groups of 32, four signed codebook vectors of 8 each; x = d (s + 1/2) / 4 c.

A vector has an 8-bit index and a 7-bit sign index, its group a 4-bit scale s, the block a float16 scale d.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.codebooks import gather, iq2_xxs_codebook, signed_by_word
from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, scaled, words


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 66] bytes to [n, 256]: d, then per group 4 indices and a word of 4 x 7 sign bits and s."""
    pairs = words(blocks, 2, 66, np.uint32).reshape(-1, 8, 2)
    index = blocks[:, 2:].reshape(-1, 8, 8)[:, :, :4]
    vectors = signed_by_word(gather(iq2_xxs_codebook(), index), pairs[:, :, 1])
    scale = half(blocks, 0) * (np.float32(0.5) + (pairs[:, :, 1] >> 28).astype(np.float32)) * np.float32(0.25)
    return scaled(vectors.reshape(-1, 8, 32), scale[:, :, None]).reshape(-1, 256)


IQ2_XXS = Format(
    "iq2_xxs",
    ggml_type=16,
    block_elements=256,
    block_bytes=66,
    decode=decode,
    activation="q8_k",
    importance="needed",
)
