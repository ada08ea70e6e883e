"""Q8_K: blocks of 256, a float32 scale d, signed 8-bit numbers q and sums of 16 of them; x = d q.

The activation format of all super-block formats: their minima and offsets multiply the sums. Not met in
files.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, as_bytes, inverse, largest, scaled, words


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 292] bytes to [n, 256]: d, 256 numbers, then 16 int16 sums (not needed here)."""
    return scaled(words(blocks, 4, 260, np.int8), words(blocks, 0, 4, np.float32))


@any_values
def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode [n, 256] to [n, 292] bytes; the value of largest magnitude becomes -127, halves go to even."""
    factor = inverse(largest(values), numerator=-127)
    numbers = np.rint(values * factor).clip(-127, 127).astype(np.int8)
    sums = numbers.reshape(-1, 16, 16).sum(axis=2, dtype=np.int16)
    return np.concatenate(
        [as_bytes(inverse(factor), np.float32), numbers.view(np.uint8), as_bytes(sums, np.int16)], axis=1
    )


Q8_K = Format("q8_k", ggml_type=15, block_elements=256, block_bytes=292, decode=decode, encode=encode)
