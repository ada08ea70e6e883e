"""Products of matrices: rows of float32 times the rows of weights in any stored format.

A few rows of weights are decoded to float32, then multiplied with all rows of x. Threads share the rows of
weights. Each decorated function makes the kernel for a format; `mul_mat_batch` is of computed values alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import ArrayValue, array_step, as_stored, joined
from graphml_cpu.lowering.step import KernelCall

from graphml.ir.node import Node
from graphml.ir.shape import Dim
from graphml_numba.helpers import F32, Array
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.formats import SCRATCH, RowFormat, has_format, row_format
from graphml_numba.kernels.running_softmax import dot
from graphml_numba.kernels.tiles import decode_and_multiply, even, rows_together

Maker = Callable[..., Callable[..., Any]]


def refuses_product(node: Node) -> str | None:
    """Why a product has no kernel."""
    weight, x = node.inputs[:2]
    if not has_format(weight.dtype.name):
        return f"no kernel decodes {weight.dtype.name}"
    if x.dtype.name != "f32":
        return f"no kernel multiplies with rows of {x.dtype.name}"
    return None


def rows_of(value: Node, last: Dim) -> ArrayValue:
    """A value as [rows, last]."""
    return ArrayValue(value, (joined(value.shape[:-1], value.name), last))


def call_linear(node: Node, make: Maker) -> KernelCall:
    """The call of the kernel of `linear` or `mul_mat`. A missing bias or residual is x, unread."""
    weight, x, *more = node.inputs
    has_bias, has_residual = bool(node.attributes.get("bias")), bool(node.attributes.get("residual"))
    n = weight.shape[0]
    arrays = {
        "out": rows_of(node, n),
        "weight": as_stored(weight),
        "x": rows_of(x, weight.shape[1]),
        "bias": ArrayValue(more[0] if has_bias else x, (n,)),
        "residual": rows_of(more[-1], n) if has_residual else rows_of(x, n),
    }
    kernel = make(row_format(weight.dtype.name), has_bias, has_residual)
    return array_step(kernel, arrays, joined((n,), node.name), name=f"{node.op.name}-{weight.dtype.name}")


@kernel_of("linear", "mul_mat", call=call_linear, refuses=refuses_product)
@functools.cache
def linear(form: RowFormat, has_bias: bool, has_residual: bool) -> Callable[..., Any]:
    """out [T, n] = x [T, k] times each row of weight [n, k] (+ bias [n]) (+ residual [T, n])."""
    word, products = form.word, decode_and_multiply(form.decode)

    def kernel(
        out: Array, weight: Array, x: Array, bias: Array, residual: Array, begin: int, end: int
    ) -> None:
        rows, n_x = weight.view(word), x.shape[0]
        together = rows_together(n_x)
        w, s = np.empty((together, x.shape[1]), F32), np.empty(SCRATCH, F32)
        sums, picked = np.empty((even(n_x), together), F32), np.arange(n_x)
        for first in range(begin, end, together):
            last = min(first + together, end)
            products(rows[first:last], x, picked, w, s, sums)
            for t in range(n_x):
                for row in range(first, last):
                    y = sums[t, row - first]
                    if has_bias:
                        y += bias[row]
                    if has_residual:
                        y += residual[t, row]
                    out[t, row] = y

    return kernel


def call_linear_id(node: Node, make: Maker) -> KernelCall:
    """The call of the kernel of `linear_id` or `mul_mat_id`."""
    weight, x, ids = node.inputs
    arrays = {
        "out": rows_of(node, weight.shape[1]),
        "weight": as_stored(weight),
        "x": rows_of(x, weight.shape[2]),
        "ids": ArrayValue(ids, (joined(ids.shape, ids.name),)),
    }
    kernel = make(row_format(weight.dtype.name))
    rows = joined(weight.shape[1:2], node.name)
    return array_step(kernel, arrays, rows, name=f"{node.op.name}-{weight.dtype.name}")


@kernel_of("linear_id", "mul_mat_id", call=call_linear_id, refuses=refuses_product)
@functools.cache
def linear_id(form: RowFormat) -> Callable[..., Any]:
    """out [T * used, n] = rows of x times the matrix of their expert, one of weight [experts, n, k].

    x: a row for each of ids [T * used], or for each token. Zeros for an expert that there is not.
    """
    word, products = form.word, decode_and_multiply(form.decode)

    def kernel(out: Array, weight: Array, x: Array, ids: Array, begin: int, end: int) -> None:
        experts = weight.view(word)
        ids_per_x = ids.shape[0] // max(x.shape[0], 1)
        s = np.empty(SCRATCH, F32)
        for i in range(ids.shape[0]):
            if not 0 <= ids[i] < experts.shape[0]:
                out[i, begin:end] = F32(0)
        for expert in range(experts.shape[0]):
            chosen = np.nonzero(ids == expert)[0]
            if chosen.shape[0] == 0:
                continue
            picked = chosen // ids_per_x
            together = rows_together(picked.shape[0])
            w = np.empty((together, x.shape[1]), F32)
            sums = np.empty((even(picked.shape[0]), together), F32)
            for first in range(begin, end, together):
                last = min(first + together, end)
                products(experts[expert, first:last], x, picked, w, s, sums)
                for i in range(picked.shape[0]):
                    for row in range(first, last):
                        out[chosen[i], row] = sums[i, row - first]

    return kernel


def call_mul_mat_batch(node: Node, function: Callable[..., Any]) -> KernelCall:
    """The call of the kernel of `mul_mat_batch`, whose leading dimensions are one."""
    weight, x = node.inputs
    lead = joined(node.shape[:-2], node.name)
    arrays = {
        name: ArrayValue(value, (lead, *value.shape[-2:]))
        for name, value in (("out", node), ("weight", weight), ("x", x))
    }
    return array_step(function, arrays, joined(node.shape[:-1], node.name), name=node.op.name)


@kernel_of("mul_mat_batch", call=call_mul_mat_batch)
def mul_mat_batch(out: Array, weight: Array, x: Array, begin: int, end: int) -> None:
    """out [b, m, n] = x [b, m, k] times each row of weight [b, n, k]; rows of all b are shared."""
    m = x.shape[1]
    for row in range(begin, end):
        b, i = row // m, row % m
        for j in range(weight.shape[1]):
            out[b, i, j] = dot(weight[b, j], x[b, i])
