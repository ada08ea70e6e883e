"""Norms over the last dimension, see `graphml.ir.ops.norm`, and softmax and sums along it."""

from __future__ import annotations

import numpy as np

from graphml_numba.helpers import F32, Array, Number, helper, sums_helper
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.exponential import exp


@sums_helper
def sum_of(x: Array) -> Number:
    """The sum of a row."""
    total = 0.0
    for i in range(len(x)):
        total += x[i]
    return total


@sums_helper
def sum_of_squares(x: Array, mean: float) -> Number:
    """The sum of (x - mean)^2 of a row."""
    total = 0.0
    for i in range(len(x)):
        total += (x[i] - mean) * (x[i] - mean)
    return total


@helper
def divided(out: Array, x: Array, mean: float, length: float) -> None:
    """out = (x - mean) / length of a row."""
    for i in range(len(x)):
        out[i] = (x[i] - F32(mean)) / F32(length)


@kernel_of("rms_norm")
def rms_norm(out: Array, x: Array, begin: int, end: int, eps: float) -> None:
    """x / sqrt(mean(x * x) + eps)."""
    for row in range(begin, end):
        divided(out[row], x[row], 0.0, np.sqrt(sum_of_squares(x[row], 0.0) / x.shape[1] + eps))


@kernel_of("rms_norm_mul")
def rms_norm_mul(out: Array, x: Array, weight: Array, begin: int, end: int, eps: float) -> None:
    """rms_norm(x) * weight."""
    for row in range(begin, end):
        length = F32(np.sqrt(sum_of_squares(x[row], 0.0) / x.shape[1] + eps))
        for i in range(x.shape[1]):
            out[row, i] = x[row, i] / length * weight[i]


@kernel_of("layer_norm")
def layer_norm(out: Array, x: Array, begin: int, end: int, eps: float) -> None:
    """(x - mean) / sqrt(variance + eps)."""
    n = x.shape[1]
    for row in range(begin, end):
        mean = sum_of(x[row]) / n
        divided(out[row], x[row], mean, np.sqrt(sum_of_squares(x[row], mean) / n + eps))


@kernel_of("l2_norm")
def l2_norm(out: Array, x: Array, begin: int, end: int, eps: float) -> None:
    """x / max(length of x, eps), NaN kept."""
    for row in range(begin, end):
        length = np.sqrt(sum_of_squares(x[row], 0.0))
        divided(out[row], x[row], 0.0, eps if length < eps else length)


@kernel_of("softmax")
def softmax(out: Array, x: Array, begin: int, end: int) -> None:
    """exp(x - max) / sum(exp(x - max)); a row with a NaN is NaN."""
    for row in range(begin, end):
        largest = x[row, 0]
        for i in range(x.shape[1]):
            largest = x[row, i] if x[row, i] > largest or x[row, i] != x[row, i] else largest
        for i in range(x.shape[1]):
            out[row, i] = exp(x[row, i] - largest)
        factor = F32(1.0 / sum_of(out[row]))
        for i in range(x.shape[1]):
            out[row, i] *= factor


@kernel_of("sum_rows")
def sum_rows(out: Array, x: Array, begin: int, end: int) -> None:
    """The sum of each row."""
    for row in range(begin, end):
        out[row, 0] = sum_of(x[row])


@kernel_of("mean_rows")
def mean_rows(
    out: Array, x: Array, rows: Array, sequences: Array, lengths: Array, begin: int, end: int
) -> None:
    """The mean of the rows of x that are of each sequence; 0 for a sequence without rows."""
    for sequence in range(begin, end):
        total, count = np.zeros(x.shape[1]), 0
        for i in range(x.shape[0]):
            if sequences[rows[i]] == sequence:
                total += x[i]
                count += 1
        for i in range(x.shape[1]):
            out[sequence, i] = total[i] / max(count, 1)
