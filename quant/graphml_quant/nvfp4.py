"""NVFP4: blocks of 64 in 4 groups of 16, 4-bit floats (E2M1) f, one 8-bit scale (E4M3) s each; x = s f.

The second, float32 scale of NVIDIA's format is a tensor of its own in a GGUF file.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, planes, scaled
from graphml_quant.mxfp4 import DOUBLED_E2M1


def _half_of_e4m3() -> NDArray[np.float32]:
    """Return half the value of each scale byte [256]; the sign bit is ignored, 0x7F (NaN) counts as 0."""
    code = np.arange(256)
    exponent, fraction = (code >> 3) & 15, code & 7
    mantissa = np.where(exponent == 0, fraction, 8 + fraction)
    values: NDArray[np.float32] = np.ldexp(mantissa.astype(np.float32), np.maximum(exponent, 1) - 11)
    values[0x7F] = 0
    return values


_HALF_E4M3 = _half_of_e4m3()


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 36] bytes to [n, 64]: 4 scales, then 4 x 8 bytes; low nibbles are a group's first half."""
    index = planes(blocks[:, 4:].reshape(-1, 4, 8), 4).reshape(-1, 4, 16)
    scale = np.take(_HALF_E4M3, blocks[:, :4])
    return scaled(np.take(DOUBLED_E2M1, index), scale[:, :, None]).reshape(-1, 64)


NVFP4 = Format("nvfp4", ggml_type=40, block_elements=64, block_bytes=36, decode=decode, activation="q8_0")
