"""The signs of codebook vectors: -1 or 0 per element, applied to small integers. Knows no format."""

from __future__ import annotations

import numpy as np
from graphml_quant.codebooks import even_sign_vectors

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formats._unpack import rows_of_8
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import constant_table

# What a 7-bit sign index stands for: 8 bytes, all bits set where the element is negative.
even_signs = constant_table(np.minimum(even_sign_vectors(), 0).tobytes())


@inline
def signs_of_word(word: int) -> Vector:
    """The four 7-bit sign indices in the low bits of `word` as 32 bytes, -1 for negative, else 0."""
    a, b, c, d = word & 127, (word >> 7) & 127, (word >> 14) & 127, (word >> 21) & 127
    return rows_of_8(even_signs(), a, b, c, d)


@inline
def negate_where(numbers: Vector, signs: Vector) -> Vector:
    """Integers, negated where the lane of `signs` is -1 and not 0."""
    return (numbers ^ signs) - signs
