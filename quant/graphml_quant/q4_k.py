"""Q4_K: blocks of 256 in 8 groups of 32, 4-bit numbers q; x = d s q - e m.

s and m are the 6-bit scale and minimum of the group, d and e the block's float16 scales of these.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, planes, scaled


def group_scales_and_minima(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Read d s and e m of the 8 groups, each [n, 8, 1], from the first 16 bytes (as in Q5_K).

    After d and e come 4 bytes a, 4 bytes b and 4 bytes c. The low 6 bits of a are s of groups 0 to 3, those
    of b are m of groups 0 to 3; c holds the low nibbles of s and m of groups 4 to 7, whose upper two bits are
    the top bits of a and of b.
    """
    a, b, c = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([a & 63, (c & 15) | ((a >> 2) & 48)], axis=1)
    minima = np.concatenate([b & 63, (c >> 4) | ((b >> 2) & 48)], axis=1)
    return scaled(scales, half(blocks, 0))[:, :, None], scaled(minima, half(blocks, 2))[:, :, None]


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 144] bytes to [n, 256]: d, e, 12 bytes of s and m, then 4 x 32 bytes of q."""
    scale, minimum = group_scales_and_minima(blocks)
    numbers = planes(blocks[:, 16:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    values = scaled(numbers, scale)
    values -= minimum
    return values.reshape(-1, 256)


Q4_K = Format(
    "q4_k",
    ggml_type=12,
    block_elements=256,
    block_bytes=144,
    decode=decode,
    activation="q8_k",
    importance="used",
)
