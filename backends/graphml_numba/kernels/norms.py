"""Norms over the last dimension, see `graphml.ir.ops.norm`."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphml_numba.kernel_of import kernel_of

Array = Any


@kernel_of("rms_norm")
def rms_norm(out: Array, x: Array, begin: int, end: int, eps: float) -> None:
    """out = x / sqrt(mean(x * x) + eps)."""
    n = x.shape[1]
    for row in range(begin, end):
        squares = 0.0
        for i in range(n):
            squares += x[row, i] * x[row, i]
        scale = np.float32(1.0) / np.sqrt(np.float32(squares / n) + eps)
        for i in range(n):
            out[row, i] = x[row, i] * scale
