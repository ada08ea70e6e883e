"""The Walsh-Hadamard transform of blocks of a row: orthonormal, and its own inverse.

Keys and values are spread by it before a cache of few bits rounds them, so that no element is much larger
than its block; scores stay what they are, since queries are spread, too (QuaRot, arXiv:2404.00456).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphml.errors import GraphError, ShapeError
from graphml.ir.op import Array, Attributes, Op, Sample, Type, integer
from graphml.ir.ops.rules import ROWS, f32, same_shape
from graphml.ir.shape import fixed

MOST = 1 << 12
"""Of a block's size: 16 KB, which every backend can hold near its arithmetic."""


def _infer(inputs: Sequence[Type], attributes: Attributes) -> Type:
    block = integer(attributes, "block")
    if not 2 <= block <= MOST or block & (block - 1):
        raise GraphError(f"wanted blocks of a power of two up to {MOST}; got {block}")
    width = inputs[0].shape[-1:]
    if not width or fixed(width[0]) % block:
        raise ShapeError(f"wanted rows of whole blocks of {block}; got {inputs[0]}")
    return same_shape(inputs, attributes)


def _transformed(inputs: Sequence[Array], attributes: Attributes) -> Array:
    """Each block times the matrix whose element (i, j) has the sign of the bits that i and j share."""
    block = integer(attributes, "block")
    indices = np.arange(block)
    shared = np.bitwise_count((indices[:, None] & indices).astype(np.uint32))
    matrix = np.where(shared % 2, -1.0, 1.0) / np.sqrt(block)
    y = inputs[0].reshape(-1, block).astype(np.float64) @ matrix
    return np.asarray(y.reshape(inputs[0].shape), np.float32)


def _samples() -> list[Sample]:
    sizes = ((2, 2), (12, 4), (24, 8), (16, 16), (96, 32), (64, 64), (576, 64), (256, 256))
    return [
        *(Sample((f32(ROWS, 3, width),), {"block": block}) for width, block in sizes),
        Sample((f32(ROWS, 128),), {"block": 128}),
    ]


walsh_hadamard = Op("walsh_hadamard", "norm", infer=_infer, reference=_transformed, samples=_samples,
              attributes={"block": None}, inplace=(0,), rowwise=(0,))  # fmt: skip
