"""IQ4_XS: blocks of 256 in 8 groups of 32, 4-bit indices i into IQ4_NL's levels; x = d (s - 32) LEVELS[i].

s is the 6-bit scale of the group, d the block's float16 scale of these.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.iq4_nl import LEVELS
from graphml_quant.layout import any_values, half, interleaved, planes, scaled


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 136] bytes to [n, 256]: d, 2 bytes of upper bits of s, 4 of its nibbles, 8 x 16 of i."""
    scales = interleaved(blocks[:, 4:8], 4) | (interleaved(blocks[:, 2:4], 2) << 4)
    scale = scaled(scales.view(np.int8) - np.int8(32), half(blocks, 0))
    index = planes(blocks[:, 8:].reshape(-1, 8, 16), 4).reshape(-1, 8, 32)
    return scaled(np.take(LEVELS, index), scale[:, :, None]).reshape(-1, 256)


IQ4_XS = Format(
    "iq4_xs",
    ggml_type=23,
    block_elements=256,
    block_bytes=136,
    decode=decode,
    activation="q8_k",
    importance="used",
)
