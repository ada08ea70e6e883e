"""Weights of any format for the tests of kernels: random blocks whose values are ordinary numbers."""

from __future__ import annotations

import numpy as np
from graphml_quant import Format


def ordinary_weights(format: Format, n: int, k: int, seed: int = 0) -> np.ndarray:
    """uint8 [n, bytes of k elements]: random bits, less blocks that decode to huge, tiny or no numbers."""
    wanted = n * k // format.block_elements
    random, kept, count = np.random.default_rng(seed), [], 0
    while count < wanted:
        blocks = random.integers(0, 256, (min(4 * wanted, 20000) + 64, format.block_bytes), np.uint8)
        largest = np.abs(format.decode(blocks)).max(axis=1)
        good = blocks[(largest > 1e-2) & (largest < 1e2)]  # false for NaN
        kept.append(good)
        count += len(good)
    return np.concatenate(kept)[:wanted].reshape(n, format.bytes_for(k))
