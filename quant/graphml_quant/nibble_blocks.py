"""The layout of blocks of 32 numbers whose low four bits are nibbles: Q4_0, Q4_1, Q5_0 and Q5_1 have it.

A block is its float16 scale d, then its float16 minimum m if it has one, then the fifth bits of elements 0 to
31 if numbers have five bits, then 16 bytes; low nibbles are the first half of the block.
x = d (q - 8 or 16) without a minimum, d q + m with one.
"""

import numpy as np
from numpy.typing import NDArray

from graphml_quant.format import Format
from graphml_quant.layout import (
    any_values,
    as_bytes,
    fifth_bits,
    half,
    interleaved,
    inverse,
    largest,
    low_and_high,
    planes,
    scaled,
    smallest,
)


def nibble_format(name: str, ggml_type: int, minimum: bool = False, fifth: bool = False) -> Format:
    """The format of this layout with a minimum or none, of five bits or of four."""
    bits_at = 4 if minimum else 2
    nibbles_at = bits_at + 4 * fifth
    n_levels = 32 if fifth else 16

    @any_values
    def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Decode [n, block_bytes] bytes to [n, 32]."""
        numbers = planes(blocks[:, nibbles_at:], 4).reshape(-1, 32)
        if fifth:
            numbers |= interleaved(blocks[:, bits_at:nibbles_at], 1) << 4
        if not minimum:
            return scaled(numbers.view(np.int8) - np.int8(n_levels // 2), half(blocks, 0))
        values = scaled(numbers, half(blocks, 0))
        values += half(blocks, 2)
        return values

    @any_values
    def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Encode [n, 32] to [n, block_bytes] bytes.

        With a minimum the smallest value becomes 0 and the largest 15 or 31; without, the value of largest
        magnitude becomes -8 or -16.
        """
        if minimum:
            least = smallest(values)
            scale = (values.max(axis=1, keepdims=True) - least) / np.float32(n_levels - 1)
            exact = (values - least) * inverse(scale) + np.float32(0.5)
        else:
            scale = largest(values) / np.float32(-(n_levels // 2))
            exact = values * inverse(scale) + np.float32(n_levels // 2 + 0.5)
        numbers = np.trunc(exact).astype(np.uint8).clip(0, n_levels - 1)
        parts = [as_bytes(scale, np.float16)]
        if minimum:
            parts.append(as_bytes(least, np.float16))
        if fifth:
            parts.append(fifth_bits(numbers))
        return np.concatenate([*parts, low_and_high(numbers)], axis=1)

    activation = "q8_1" if minimum else "q8_0"
    return Format(name, ggml_type, 32, nibbles_at + 16, decode, encode, activation, importance="used")
