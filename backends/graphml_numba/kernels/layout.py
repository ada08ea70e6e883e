"""Copies of elements in another layout, see `graphml.ir.ops.layout`. Elements are of any type of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu.array_kernels.row_kernels import refuses_rows
from graphml_cpu.array_kernels.step import array_step, as_stored, joined
from graphml_cpu.lowering.step import KernelCall

from graphml.ir.node import Node
from graphml.ir.op import integers
from graphml_numba.helpers import Array
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.broadcast import DIMS, in_four
from graphml_numba.kernels.broadcast import refuses as refuses_in_four


def refuses_elements(node: Node) -> str | None:
    """Why single elements are not copied: a block format has none."""
    return f"no kernel moves elements of {node.dtype.name}" if node.dtype.is_format else None


def refuses(node: Node) -> str | None:
    """Why rows are not copied."""
    return refuses_elements(node) or refuses_rows(node)


def refuses_permute(node: Node) -> str | None:
    """Why dimensions are not permuted; a row of out may be of a symbolic width."""
    return refuses_elements(node) or refuses_in_four(node)


@kernel_of("concat", refuses=refuses)
def concat(out: Array, a: Array, b: Array, begin: int, end: int) -> None:
    """out = the rows of a, each with that of b behind it."""
    n = a.shape[1]
    for row in range(begin, end):
        out[row, :n] = a[row]
        out[row, n:] = b[row]


@kernel_of("columns", refuses=refuses)
def columns(out: Array, x: Array, begin: int, end: int, start: int) -> None:
    """out = some columns of x, from `start` on."""
    for row in range(begin, end):
        out[row] = x[row, start : start + out.shape[1]]


def call_repeat(node: Node, function: Callable[..., Any]) -> KernelCall:
    """The call of the kernel of `repeat`."""
    arrays = {"out": as_stored(node), "x": as_stored(node.inputs[0])}
    return array_step(function, arrays, joined(node.shape[:1], node.name))


@kernel_of("repeat", call=call_repeat, refuses=refuses)
def repeat(out: Array, x: Array, begin: int, end: int) -> None:
    """out [T, n, d] = x [T, 1, d], n times."""
    for t in range(begin, end):
        for i in range(out.shape[1]):
            out[t, i] = x[t, 0]


def call_permute(node: Node, function: Callable[..., Any]) -> KernelCall:
    """The call of the kernel of `permute`, with all dimensions that kernels see."""
    missing = DIMS - len(node.shape)
    axes = (*range(missing), *(missing + axis for axis in integers(node.attributes, "axes")))
    arrays = {"out": in_four(node), "x": in_four(node.inputs[0])}
    return array_step(function, arrays, joined(node.shape[:-1], node.name), attributes={"axes": axes})


@kernel_of("permute", call=call_permute, refuses=refuses_permute)
def permute(out: Array, x: Array, begin: int, end: int, axes: tuple[int, ...]) -> None:
    """out[i0, i1, i2, i3] = the element of x whose index along axis axes[j] is ij."""
    elements, n = x.reshape(-1), x.shape
    distance = (n[1] * n[2] * n[3], n[2] * n[3], n[3], 1)  # between neighbours along each axis of x
    d0, d1, d2, d3 = distance[axes[0]], distance[axes[1]], distance[axes[2]], distance[axes[3]]
    _, size_1, size_2, size_3 = out.shape
    for row in range(begin, end):
        i, j, k = row // (size_1 * size_2), row // size_2 % size_1, row % size_2
        first = i * d0 + j * d1 + k * d2
        for c in range(size_3):
            out[i, j, k, c] = elements[first + c * d3]
