"""Ops that move elements, see `graphml.ir.ops.layout`, and rows and elements by number (`index`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.row_kernels import row_step
from graphml_cpu.array_kernels.step import ArrayValue, array_step, joined
from graphml_cpu.lowering.step import Step, one_symbol

from graphml.ir.node import Node
from graphml.ir.op import integers
from graphml_numba.helpers import F32, Array
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.elementwise import N_DIMS, padded


@kernel_of("concat")
def concat(out: Array, a: Array, b: Array, begin: int, end: int) -> None:
    """Rows of a and b, one behind the other."""
    for row in range(begin, end):
        out[row, : a.shape[1]] = a[row]
        out[row, a.shape[1] :] = b[row]


@kernel_of("columns")
def columns(out: Array, x: Array, begin: int, end: int, start: int, stop: int) -> None:
    """Elements start to stop of each row."""
    for row in range(begin, end):
        out[row] = x[row, start:stop]


def call_repeat(node: Node, function: Callable[..., Any]) -> Step:
    """The call of the kernel of `repeat`, which sees x [T, 1, d] as it is."""
    return row_step(node, function, options={"whole": ("x",)})


@kernel_of("repeat", call=call_repeat)
def repeat(out: Array, x: Array, begin: int, end: int, n: int) -> None:
    """Each row of x [T, 1, d] n times."""
    for row in range(begin, end):
        out[row] = x[row // n, 0]


def call_permute(node: Node, function: Callable[..., Any]) -> Step:
    """The call of the kernel of `permute`, with dimensions of 1 before the others."""
    x, before = node.inputs[0], N_DIMS - len(node.shape)
    axes = (*range(before), *(axis + before for axis in integers(node.attributes, "axes")))
    arrays = {"out": ArrayValue(node, padded(node.shape)), "x": ArrayValue(x, padded(x.shape))}
    rows = joined(node.shape[:-1], node.name)
    return array_step(function, arrays, rows, attributes={"axes": axes}, name="permute")


def refuses_permute(node: Node) -> str | None:
    """Why the dimensions are not permuted."""
    if len(node.shape) > N_DIMS or node.dtype.is_format:
        return f"no kernel permutes {node.type}"
    return one_symbol(node)


@kernel_of("permute", call=call_permute, refuses=refuses_permute)
def permute(out: Array, x: Array, begin: int, end: int, axes: tuple[int, ...]) -> None:
    """Dimension i of out is dimension axes[i] of x."""
    steps = (x.shape[1] * x.shape[2] * x.shape[3], x.shape[2] * x.shape[3], x.shape[3], 1)
    flat = x.reshape(x.size)
    _, n_1, n_2, n = out.shape
    for row in range(begin, end):
        i, j, k = row // (n_1 * n_2), row // n_2 % n_1, row % n_2
        first = i * steps[axes[0]] + j * steps[axes[1]] + k * steps[axes[2]]
        for column in range(n):
            out[i, j, k, column] = flat[first + column * steps[axes[3]]]


@kernel_of("gather")
def gather(out: Array, x: Array, ids: Array, begin: int, end: int) -> None:
    """Elements of each row by their numbers; the nearest for a number that has none."""
    for row in range(begin, end):
        for i in range(out.shape[1]):
            out[row, i] = x[row, max(0, min(ids[row, i], x.shape[1] - 1))]


@kernel_of("column_numbers")
def column_numbers(out: Array, x: Array, begin: int, end: int, n: int, each: int) -> None:
    """0, ..., each number `each` times, in every row."""
    for row in range(begin, end):
        for i in range(n):
            out[row, i] = i // each


@kernel_of("top_k")
def top_k(out: Array, x: Array, begin: int, end: int, k: int) -> None:
    """The numbers of the k largest elements, the largest first, equal ones by number.

    Those so far are in order; an element that is larger than the last of them is moved to its place.
    """
    for row in range(begin, end):
        kept = 0
        for i in range(x.shape[1]):
            if kept == k and not x[row, i] > x[row, out[row, k - 1]]:
                continue
            place = min(kept, k - 1)
            while place > 0 and x[row, i] > x[row, out[row, place - 1]]:
                out[row, place] = out[row, place - 1]
                place -= 1
            out[row, place] = i
            kept = min(kept + 1, k)


@kernel_of("top_k_groups")
def top_k_groups(out: Array, x: Array, begin: int, end: int, n_group: int, n_group_used: int) -> None:
    """x where its group has one of the largest sums of two elements, minus infinity elsewhere."""
    width = x.shape[1] // n_group
    scores = np.empty(n_group, F32)
    for row in range(begin, end):
        for group in range(n_group):
            first, second = F32(-np.inf), F32(-np.inf)
            for i in range(group * width, (group + 1) * width):
                if x[row, i] > first:
                    first, second = x[row, i], first
                elif x[row, i] > second:
                    second = x[row, i]
            scores[group] = first + second
        for group in range(n_group):
            better = 0
            for other in range(n_group):
                if scores[other] > scores[group] or (scores[other] == scores[group] and other < group):
                    better += 1
            for i in range(group * width, (group + 1) * width):
                out[row, i] = x[row, i] if better < n_group_used else F32(-np.inf)
