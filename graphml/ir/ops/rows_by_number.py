"""Rows by number in NumPy: what every op that reads or writes by an index operand does with its numbers.

A number outside 0 to n - 1 (no negative number counts from the end) reads as a row of zeros, and a write to
it is left out. Of equal numbers in one write the last is written. Knows arrays; nothing of ops.
"""

from __future__ import annotations

import numpy as np

from graphml.ir.op import Array


def inside(numbers: Array, n: int) -> Array:
    """Where numbers are those of n rows."""
    return np.asarray((numbers >= 0) & (numbers < n))


def rows_at(table: Array, numbers: Array) -> tuple[Array, Array]:
    """The rows of a table by their numbers, any row for a number outside; and where numbers are inside."""
    known = inside(numbers, len(table))
    if not known.any():
        return np.zeros((*numbers.shape, *table.shape[1:]), table.dtype), known
    return table[np.where(known, numbers, numbers[known].flat[0])], known


def zero_outside(rows: Array, known: Array) -> Array:
    """The rows, those that are not known as zeros; rows [*known.shape, ...]."""
    if known.all():
        return rows
    return np.where(known.reshape(*known.shape, *[1] * (rows.ndim - known.ndim)), rows, rows.dtype.type(0))


def written(numbers: Array, n: int) -> Array:
    """Which of the rows to write are written to n rows: those inside, of equal numbers the last."""
    _, last = np.unique(numbers[::-1], return_index=True)
    chosen = np.sort(len(numbers) - 1 - last)
    return np.asarray(chosen[inside(numbers[chosen], n)])
