"""IQ3_S: blocks of 256 in 8 groups of 32, eight signed codebook vectors of 4 each; x = d (2s + 1) c.

A vector has a 9-bit index and 4 sign bits, its group a 4-bit scale s, the block a float16 scale d.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.codebooks import gather, iq3_s_codebook, sign_vectors
from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, interleaved, scaled


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 110] bytes to [n, 256]: d, 64 indices, 8 bytes of their ninth bits, 32 of signs, 4 of s."""
    index = interleaved(blocks[:, 66:74], 1).astype(np.uint16) << np.uint16(8)
    index |= blocks[:, 2:66]
    vectors = gather(iq3_s_codebook(), index).reshape(-1, 8, 4, 8)
    vectors *= gather(sign_vectors(), blocks[:, 74:106]).reshape(-1, 8, 4, 8)
    scale = scaled(2 * interleaved(blocks[:, 106:], 4) + np.uint8(1), half(blocks, 0))
    return scaled(vectors.reshape(-1, 8, 32), scale[:, :, None]).reshape(-1, 256)


IQ3_S = Format(
    "iq3_s",
    ggml_type=21,
    block_elements=256,
    block_bytes=110,
    decode=decode,
    activation="q8_k",
    importance="used",
)
