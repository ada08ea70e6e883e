"""Functions that several of ATen's ops and of what is recognised share, in NumPy, in float64.

Knows numbers alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = Any  # an array, or the number that a size is


def erf(x: Array) -> Array:
    """The error function, to the precision of float64."""
    return np.vectorize(math.erf, otypes=[np.float64])(np.asarray(x, np.float64))


def erfinv(x: Array) -> Array:
    """Of which the error function is x, by Newton's steps."""
    y = np.zeros_like(np.asarray(x, np.float64))
    for _ in range(60):
        y = y - np.clip((erf(y) - x) * math.sqrt(math.pi) / 2 * np.exp(y**2), -0.5, 0.5)
    return y


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    return np.exp(-np.logaddexp(0.0, -np.asarray(x, np.float64)))


def gelu(x: Array, approximate: str = "none") -> Array:
    """GELU, or its tanh form."""
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def softmax(x: Array, axis: int) -> Array:
    """exp(x) over its sum; rows that are all minus infinity become 0."""
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    raised = np.exp(x - top)
    total = raised.sum(axis=axis, keepdims=True)
    return raised / np.where(total == 0, 1.0, total)
