"""Weights of any format for the tests of kernels: random blocks whose values are ordinary numbers."""

from __future__ import annotations

import functools

import numpy as np
from graphml_quant import Format


def ordinary_weights(format: Format, n: int, k: int, seed: int = 0) -> np.ndarray:
    """uint8 [n, bytes of k elements]: random blocks, none that decode to huge, tiny or no numbers."""
    blocks = _ordinary_blocks(format)
    chosen = np.random.default_rng(seed).integers(0, len(blocks), n * k // format.block_elements)
    return blocks[chosen].reshape(n, format.bytes_for(k))


@functools.cache
def _ordinary_blocks(format: Format) -> np.ndarray:
    """Some thousand blocks of random bits."""
    blocks = np.random.default_rng(0).integers(0, 256, (20000, format.block_bytes), np.uint8)
    largest = np.abs(format.decode(blocks)).max(axis=1)
    good = blocks[(largest > 1e-2) & (largest < 1e2)]  # false for NaN
    assert len(good) > 1000
    return good
