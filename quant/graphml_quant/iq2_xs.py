"""IQ2_XS: blocks of 256 in 16 groups of 16, two signed codebook vectors of 8 each; x = d (s + 1/2) / 4 c.

A vector has a 9-bit index and a 7-bit sign index, its group a 4-bit scale s, the block a float16 scale d.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.codebooks import even_sign_vectors, gather, iq2_xs_codebook
from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, interleaved, scaled, words


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 74] bytes to [n, 256]: d, 32 words of index and sign index, 8 bytes of s."""
    codes = words(blocks, 2, 66, np.uint16)
    vectors = gather(iq2_xs_codebook(), codes & np.uint16(511))
    vectors *= gather(even_sign_vectors(), codes >> np.uint16(9))
    scale = half(blocks, 0) * (np.float32(0.5) + interleaved(blocks[:, 66:], 4)) * np.float32(0.25)
    return scaled(vectors.reshape(-1, 16, 16), scale[:, :, None]).reshape(-1, 256)


IQ2_XS = Format(
    "iq2_xs",
    ggml_type=17,
    block_elements=256,
    block_bytes=74,
    decode=decode,
    activation="q8_k",
    importance="needed",
)
