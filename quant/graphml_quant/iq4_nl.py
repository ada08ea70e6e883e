"""IQ4_NL: blocks of 32, a float16 scale d and 4-bit indices i into a curve of levels; x = d LEVELS[i]."""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import any_values, as_bytes, half, inverse, largest, low_and_high, planes, scaled

# kvalues_iq4nl in ggml-common.h: denser around zero, where most weights lie
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
# From each of these on the next level is the nearer one.
MIDPOINTS = (LEVELS[:-1] + LEVELS[1:]) / 2
# GROUP_MAX_EPS in ggml-quants.c: a block without a larger value becomes zeros.
SMALLEST = np.float32(1e-15)


@any_values
def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode [n, 18] bytes to [n, 32]: d, then 16 bytes; low nibbles are the first half of the block."""
    index = planes(blocks[:, 2:], 4).reshape(-1, 32)
    return scaled(np.take(LEVELS, index), half(blocks, 0))


@any_values
def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode [n, 32] to [n, 18] bytes, as ggml writes a cache: without a search for a better scale.

    The value of largest magnitude becomes the first level, all others the nearest; then the scale is that of
    the least sum of squared errors, each weighed by its value's square. The sums go from the first value to
    the last, in float32.
    """
    top = largest(values)
    kept = np.abs(top) >= SMALLEST
    first_scale = inverse(np.where(kept, top / LEVELS[0], np.float32(0)))
    index = np.searchsorted(MIDPOINTS, values * first_scale, side="right").astype(np.uint8)
    levels = np.take(LEVELS, index)
    weighed = values * values * levels
    with_values, with_levels = (np.cumsum(weighed * numbers, axis=1)[:, -1:] for numbers in (values, levels))
    scale = np.where(kept & (with_levels > 0), with_values / with_levels, np.float32(0))
    return np.concatenate([as_bytes(scale, np.float16), low_and_high(index)], axis=1)


IQ4_NL = Format(
    "iq4_nl",
    ggml_type=20,
    block_elements=32,
    block_bytes=18,
    decode=decode,
    encode=encode,
    activation="q8_0",
    importance="used",
)
