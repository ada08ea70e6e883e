"""Q3_K: blocks of 256 in 16 groups of 16, 3-bit numbers q; x = d (s - 32) (q - 4).

s is the 6-bit scale of the group, d the block's float16 scale of these.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, planes, scaled


def _group_scales(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Unpack [n, 12] bytes to the 16 scales s - 32: 8 bytes of low nibbles, 4 of upper bit pairs."""
    scales = planes(packed[:, :8], 4).reshape(-1, 16)
    scales |= planes(packed[:, 8:], 2).reshape(-1, 16) << 4
    return scales.view(np.int8) - np.int8(32)


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 110] bytes to [n, 256]: 32 bytes of third bits, 2 x 32 of low bits, 12 of s, d."""
    scale = scaled(_group_scales(blocks[:, 96:108]), half(blocks, 108))
    numbers = planes(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    numbers |= planes(blocks[:, :32], 1) << 2
    signed = numbers.view(np.int8) - np.int8(4)
    return scaled(signed.reshape(-1, 16, 16), scale[:, :, None]).reshape(-1, 256)


Q3_K = Format(
    "q3_k",
    ggml_type=11,
    block_elements=256,
    block_bytes=110,
    decode=decode,
    activation="q8_k",
    importance="used",
)
