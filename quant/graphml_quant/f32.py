"""F32: IEEE single precision, stored as it is."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import as_bytes, words


def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 4] bytes to [n, 1]."""
    return words(blocks, 0, 4, np.float32).copy()


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode [n, 1] to [n, 4] bytes."""
    return as_bytes(values, np.float32)


F32 = Format("f32", ggml_type=0, block_elements=1, block_bytes=4, decode=decode, encode=encode)
