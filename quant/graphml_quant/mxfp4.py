"""MXFP4: blocks of 32, an 8-bit exponent e and 4-bit floats (E2M1) f; x = 2^(e - 127) f.

The microscaling format of the Open Compute Project. As in ggml, e = 255, there a NaN, is one more exponent.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, planes, scaled

# E2M1 times two, so that all are whole numbers; the scale is halved instead (kvalues_fp4 in ggml-common.h)
DOUBLED_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def _half_powers(exponents: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return 2^(e - 128), of which the two smallest are subnormal."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 17] bytes to [n, 32]: e, then 16 bytes; low nibbles are the first half of the block."""
    index = planes(blocks[:, 1:], 4).reshape(-1, 32)
    return scaled(np.take(DOUBLED_E2M1, index), _half_powers(blocks[:, :1]))


MXFP4 = Format("mxfp4", ggml_type=39, block_elements=32, block_bytes=17, decode=decode, activation="q8_0")
