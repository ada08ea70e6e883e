"""Q2_K: blocks of 256 in 16 groups of 16, 2-bit numbers q; x = d s q - e m.

s and m are the 4-bit scale and minimum of the group, d and e the block's float16 scales of these.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, planes, scaled


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 84] bytes to [n, 256]: 16 bytes of s (low) and m (high), 2 x 32 bytes of q, d, e."""
    groups = np.ascontiguousarray(blocks[:, :16])
    scale = scaled(groups & np.uint8(15), half(blocks, 80))
    minimum = scaled(groups >> np.uint8(4), half(blocks, 82))
    numbers = planes(blocks[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    values = scaled(numbers, scale[:, :, None])
    values -= minimum[:, :, None]
    return values.reshape(-1, 256)


Q2_K = Format(
    "q2_k",
    ggml_type=10,
    block_elements=256,
    block_bytes=84,
    decode=decode,
    activation="q8_k",
    importance="used",
)
