"""IQ1_M: blocks of 256 in 16 groups of 16, two ternary codebook vectors of 8 each; x = d (2s + 1) (c +- 1/8).

A vector has an 11-bit index and the sign of its shift, a group a 3-bit scale s. The block's float16 scale d
is spread over the top nibbles of the four words of scales.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.codebooks import gather, iq1_codebook
from graphml_quant.format import Format
from graphml_quant.iq1_s import SHIFT
from graphml_quant.layout import any_values, interleaved, scaled, words


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 56] bytes to [n, 256]: 32 indices, 16 bytes of 2 x (3 index bits, sign), 4 words of s, d."""
    heads = words(blocks, 48, 56, np.uint16)
    quarters = (heads >> np.uint16(12)) << np.array([0, 4, 8, 12], np.uint16)
    block_scale = np.bitwise_or.reduce(quarters, axis=1, keepdims=True).view(np.float16).astype(np.float32)
    scales = ((heads[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)).reshape(-1, 16)
    scale = scaled(2 * scales + np.uint16(1), block_scale)

    tails = interleaved(blocks[:, 32:48], 4)
    index = ((tails & 7).astype(np.uint16) << np.uint16(8)) | blocks[:, :32]
    values = gather(iq1_codebook(), index).astype(np.float32)
    values += np.where(tails & 8, -SHIFT, SHIFT)[:, :, None]
    return scaled(values.reshape(-1, 16, 16), scale[:, :, None]).reshape(-1, 256)


IQ1_M = Format(
    "iq1_m",
    ggml_type=29,
    block_elements=256,
    block_bytes=56,
    decode=decode,
    activation="q8_k",
    importance="used",
)
