"""TQ1_0: blocks of 256, a float16 scale d and ternary numbers, five to a byte; x = d (t - 1).

A byte holds ceil(256 v / 243) for a number v of five base-3 digits t, the first element's digit on top. So
the top digit is byte * 3 >> 8, and multiplying the byte by 3 modulo 256 moves the next digit up.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, half, scaled

# (first byte, byte after the last, digits per byte); in each run all bytes' first digits come first
_RUNS = ((0, 32, 5), (32, 48, 5), (48, 52, 4))


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 54] bytes to [n, 256]: 32 and 16 bytes of five digits, 4 bytes of four, then d."""
    digits = np.empty((len(blocks), 256), np.uint8)
    first = 0
    for start, stop, count in _RUNS:
        run = digits[:, first : first + (stop - start) * count].reshape(-1, count, stop - start)
        for place in range(count):
            np.multiply(blocks[:, start:stop], np.uint8(3**place), out=run[:, place])
        first += (stop - start) * count
    trits = (digits.astype(np.uint16) * np.uint16(3)) >> np.uint16(8)
    return scaled(trits.astype(np.int8) - np.int8(1), half(blocks, 52))


TQ1_0 = Format("tq1_0", ggml_type=34, block_elements=256, block_bytes=54, decode=decode, activation="q8_k")
