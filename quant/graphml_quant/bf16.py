"""BF16: the upper half of a single-precision number, its exponent range with 8 bits of precision."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import as_bytes, words


def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 2] bytes to [n, 1]."""
    bits = words(blocks, 0, 2, np.uint16).astype(np.uint32)
    bits <<= np.uint32(16)
    return bits.view(np.float32)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode [n, 1] to [n, 2] bytes: to nearest, ties to even; a NaN stays one and becomes quiet."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    upper = bits >> np.uint32(16)
    # a carry out of the fraction is right: it moves on to the next exponent, at the end to infinity
    rounded = (bits.astype(np.uint64) + np.uint64(0x7FFF) + (upper & np.uint32(1))) >> np.uint64(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return as_bytes(np.where(is_nan, upper | np.uint32(0x40), rounded), np.uint16)


BF16 = Format(
    "bf16", ggml_type=30, block_elements=1, block_bytes=2, decode=decode, encode=encode, activation="bf16"
)
