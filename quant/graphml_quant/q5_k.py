"""Q5_K: blocks of 256 in 8 groups of 32, 5-bit numbers q; x = d s q - e m, as in Q4_K."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, planes, scaled
from graphml_quant.q4_k import group_scales_and_minima


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 176] bytes to [n, 256]: the head of Q4_K, 32 bytes of fifth bits, 4 x 32 of nibbles."""
    scale, minimum = group_scales_and_minima(blocks)
    numbers = planes(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    numbers |= planes(blocks[:, 16:48], 1) << 4
    values = scaled(numbers, scale)
    values -= minimum
    return values.reshape(-1, 256)


Q5_K = Format(
    "q5_k",
    ggml_type=13,
    block_elements=256,
    block_bytes=176,
    decode=decode,
    activation="q8_k",
    importance="used",
)
