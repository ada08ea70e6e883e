"""Elements of rows by number, and the numbers of the largest ones; see `graphml.ir.ops.index`."""

from __future__ import annotations

import numpy as np

from graphml_numba.helpers import F32, Array, Number, helper
from graphml_numba.kernel_of import kernel_of


@kernel_of("gather")
def gather(out: Array, x: Array, ids: Array, begin: int, end: int) -> None:
    """out[row, i] = x[row, ids[row, i]]; 0 for a number that no element has."""
    for row in range(begin, end):
        for i in range(ids.shape[1]):
            out[row, i] = 0
            if 0 <= ids[row, i] < x.shape[1]:
                out[row, i] = x[row, ids[row, i]]


@kernel_of("column_numbers")
def column_numbers(out: Array, tokens: Array, begin: int, end: int, each: int) -> None:
    """out[row, i] = i // each."""
    for row in range(begin, end):
        for i in range(out.shape[1]):
            out[row, i] = i // each


@helper
def before(a: Number, b: Number) -> bool:
    """Whether a is before an earlier b in descending order; a NaN is after all numbers."""
    return bool(a > b or (b != b and a == a))


@helper
def choose_largest(x: Array, chosen: Array) -> None:
    """chosen = the indices of the largest elements of x in descending order, equal ones by index."""
    k = chosen.shape[0]
    for i in range(x.shape[0]):
        place = min(i, k)
        while place > 0 and before(x[i], x[chosen[place - 1]]):
            if place < k:
                chosen[place] = chosen[place - 1]
            place -= 1
        if place < k:
            chosen[place] = i


@kernel_of("top_k")
def top_k(out: Array, x: Array, begin: int, end: int) -> None:
    """out = the indices of the k largest elements of each row."""
    for row in range(begin, end):
        choose_largest(x[row], out[row])


@kernel_of("top_k_groups")
def top_k_groups(out: Array, x: Array, begin: int, end: int, n_group: int, n_group_used: int) -> None:
    """out = x in the groups with the largest scores, elsewhere -infinity.

    A group's score is the sum of its two largest elements, NaN where it has one.
    """
    size = x.shape[1] // n_group
    scores, used = np.empty(n_group, F32), np.empty(n_group_used, np.int64)
    for row in range(begin, end):
        for group in range(n_group):
            elements = x[row, group * size : (group + 1) * size]
            largest = second = F32(-np.inf)
            for i in range(size):
                if elements[i] > largest or elements[i] != elements[i]:
                    largest, second = elements[i], largest
                elif elements[i] > second:
                    second = elements[i]
            scores[group] = largest + second
        choose_largest(scores, used)
        out[row] = F32(-np.inf)
        for i in range(n_group_used):
            first = used[i] * size
            out[row, first : first + size] = x[row, first : first + size]
