"""IQ2_S: blocks of 256 in 16 groups of 16, two signed codebook vectors of 8 each; x = d (s + 1/2) / 4 c.

A vector has a 10-bit index and 8 sign bits, its group a 4-bit scale s, the block a float16 scale d.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.codebooks import gather, iq2_s_codebook, sign_vectors
from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, interleaved, scaled


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 82] bytes to [n, 256]: d, 32 indices, 32 bytes of signs, 8 of upper index bits, 8 of s."""
    index = interleaved(blocks[:, 66:74], 2).astype(np.uint16) << np.uint16(8)
    index |= blocks[:, 2:34]
    vectors = gather(iq2_s_codebook(), index)
    vectors *= gather(sign_vectors(), blocks[:, 34:66])
    scale = half(blocks, 0) * (np.float32(0.5) + interleaved(blocks[:, 74:], 4)) * np.float32(0.25)
    return scaled(vectors.reshape(-1, 16, 16), scale[:, :, None]).reshape(-1, 256)


IQ2_S = Format(
    "iq2_s",
    ggml_type=22,
    block_elements=256,
    block_bytes=82,
    decode=decode,
    activation="q8_k",
    importance="used",
)
