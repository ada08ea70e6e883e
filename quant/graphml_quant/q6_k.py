"""Q6_K: blocks of 256 in 16 groups of 16, 6-bit numbers q; x = d s (q - 32).

s is the signed 8-bit scale of the group, d the block's float16 scale of these.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, planes, scaled, words


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 210] bytes to [n, 256]: 2 x 64 bytes of low nibbles, 2 x 32 of upper bit pairs, 16 s, d."""
    scale = scaled(words(blocks, 192, 208, np.int8), half(blocks, 208))
    numbers = planes(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 256)
    numbers |= planes(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 256) << 4
    signed = numbers.view(np.int8) - np.int8(32)
    return scaled(signed.reshape(-1, 16, 16), scale[:, :, None]).reshape(-1, 256)


Q6_K = Format(
    "q6_k",
    ggml_type=14,
    block_elements=256,
    block_bytes=210,
    decode=decode,
    activation="q8_k",
    importance="used",
)
