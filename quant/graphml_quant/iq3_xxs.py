"""IQ3_XXS: blocks of 256 in 8 groups of 32, eight signed codebook vectors of 4 each; x = d (s + 1/2) / 2 c.

A vector has an 8-bit index, two of them share a 7-bit sign index; a group has a 4-bit scale s, the block a
float16 scale d.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.codebooks import gather, iq3_xxs_codebook, signed_by_word
from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, scaled, words


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 98] bytes to [n, 256]: d, 64 indices, then per group a word of 4 x 7 sign bits and s."""
    codes = words(blocks, 66, 98, np.uint32)
    vectors = gather(iq3_xxs_codebook(), blocks[:, 2:66]).reshape(-1, 8, 4, 8)
    scale = half(blocks, 0) * (np.float32(0.5) + (codes >> 28).astype(np.float32)) * np.float32(0.5)
    return scaled(signed_by_word(vectors, codes).reshape(-1, 8, 32), scale[:, :, None]).reshape(-1, 256)


IQ3_XXS = Format(
    "iq3_xxs",
    ggml_type=18,
    block_elements=256,
    block_bytes=98,
    decode=decode,
    activation="q8_k",
    importance="used",
)
