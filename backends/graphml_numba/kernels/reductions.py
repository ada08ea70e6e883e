"""Reductions of rows, and means of the rows of each sequence; see `graphml.ir.ops.reduce`."""

from __future__ import annotations

import numpy as np

from graphml_numba.helpers import F32, F64, Array
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.exponential import exp
from graphml_numba.kernels.norms import sum_of


@kernel_of("softmax")
def softmax(out: Array, x: Array, begin: int, end: int) -> None:
    """out = exp(x - max(x)) / sum(exp(x - max(x)))."""
    n = x.shape[1]
    for row in range(begin, end):
        largest = F32(-np.inf)
        for i in range(n):
            largest = max(largest, x[row, i])
        for i in range(n):
            out[row, i] = exp(x[row, i] - largest)
        total = F32(sum_of(out[row]))
        for i in range(n):
            out[row, i] /= total


@kernel_of("sum_rows")
def sum_rows(out: Array, x: Array, begin: int, end: int) -> None:
    """out [rows, 1] = the sum of each row."""
    for row in range(begin, end):
        out[row, 0] = sum_of(x[row])


@kernel_of("max_rows")
def max_rows(out: Array, x: Array, begin: int, end: int) -> None:
    """out [rows, 1] = the largest number of each row; NaN where one is."""
    for row in range(begin, end):
        largest = x[row, 0]
        for i in range(x.shape[1]):
            largest = largest if largest > x[row, i] or largest != largest else x[row, i]
        out[row, 0] = largest


@kernel_of("min_rows")
def min_rows(out: Array, x: Array, begin: int, end: int) -> None:
    """out [rows, 1] = the smallest number of each row; NaN where one is."""
    for row in range(begin, end):
        smallest = x[row, 0]
        for i in range(x.shape[1]):
            smallest = smallest if smallest < x[row, i] or smallest != smallest else x[row, i]
        out[row, 0] = smallest


@kernel_of("cumsum")
def cumsum(out: Array, x: Array, begin: int, end: int) -> None:
    """out = the sum of each row up to each element."""
    for row in range(begin, end):
        total = F64(0)
        for i in range(x.shape[1]):
            total += x[row, i]
            out[row, i] = total


@kernel_of("mean_rows")
def mean_rows(
    out: Array, x: Array, output_rows: Array, sequences: Array, lengths: Array, begin: int, end: int
) -> None:
    """out [S, n] = the mean of those rows of x whose tokens are of a sequence; 0 where it has none.

    output_rows: the token of each row of x; rows of others are left out. sequences: those of tokens.
    """
    n = out.shape[1]
    for sequence in range(begin, end):
        total, count = np.zeros(n, F64), 0
        for i in range(x.shape[0]):
            token = output_rows[i]
            if 0 <= token < sequences.shape[0] and sequences[token] == sequence:
                count += 1
                for c in range(n):
                    total[c] += x[i, c]
        for c in range(n):
            out[sequence, c] = total[c] / max(count, 1)
