"""TQ2_0: blocks of 256, a float16 scale d and ternary numbers in 2 bits q; x = d (q - 1)."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, planes, scaled


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 66] bytes to [n, 256]: 2 x 32 bytes, each 32 with four runs of 32 elements, then d."""
    numbers = planes(blocks[:, :64].reshape(-1, 2, 32), 2).view(np.int8)
    return scaled((numbers - np.int8(1)).reshape(-1, 256), half(blocks, 64))


TQ2_0 = Format("tq2_0", ggml_type=35, block_elements=256, block_bytes=66, decode=decode, activation="q8_k")
