"""F16: IEEE half precision."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, as_bytes, half


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 2] bytes to [n, 1]."""
    return half(blocks, 0)


@any_values
def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode [n, 1] to [n, 2] bytes: to nearest, ties to even; beyond 65504 to infinity."""
    return as_bytes(values, np.float16)


F16 = Format("f16", ggml_type=1, block_elements=1, block_bytes=2, decode=decode, encode=encode)
