"""Norms over the last dimension, see `graphml.ir.ops.norm`, and with weights the fused ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import ArrayValue, array_step, joined
from graphml_cpu.lowering.step import KernelCall

from graphml.ir.node import Node
from graphml.ir.op import number
from graphml_numba.helpers import F32, F64, Array, Number, sums_helper
from graphml_numba.kernel_of import kernel_of

ONE = F32(1)


@sums_helper
def sum_of(x: Array) -> Number:
    """The sum of a row."""
    total = F64(0)
    for i in range(x.shape[0]):
        total += F64(x[i])
    return total


@sums_helper
def sum_of_squares(x: Array, mean: Number) -> Number:
    """The sum of the squares of a row's distances from a number."""
    total = F64(0)
    for i in range(x.shape[0]):
        total += (F64(x[i]) - mean) * (F64(x[i]) - mean)
    return total


@kernel_of("rms_norm")
def rms_norm(out: Array, x: Array, begin: int, end: int, eps: float) -> None:
    """out = x / sqrt(mean(x * x) + eps)."""
    n = x.shape[1]
    for row in range(begin, end):
        scale = F32(1 / np.sqrt(sum_of_squares(x[row], 0.0) / n + eps))
        for i in range(n):
            out[row, i] = x[row, i] * scale


@kernel_of("rms_norm_mul")
def rms_norm_mul(out: Array, x: Array, weight: Array, begin: int, end: int, eps: float) -> None:
    """out = rms_norm(x) * weight."""
    n = x.shape[1]
    for row in range(begin, end):
        scale = F32(1 / np.sqrt(sum_of_squares(x[row], 0.0) / n + eps))
        for i in range(n):
            out[row, i] = x[row, i] * scale * weight[i]


@kernel_of("l2_norm")
def l2_norm(out: Array, x: Array, begin: int, end: int, eps: float) -> None:
    """out = x / max(sqrt(sum(x * x)), eps)."""
    for row in range(begin, end):
        length = np.sqrt(sum_of_squares(x[row], 0.0))
        length = F64(eps) if length < eps else length  # a NaN passes
        scale = F32(1 / length)
        for i in range(x.shape[1]):
            out[row, i] = x[row, i] * scale


@kernel_of("walsh_hadamard")
def walsh_hadamard(out: Array, x: Array, begin: int, end: int, block: int) -> None:
    """Each block of x times the orthonormal Walsh-Hadamard matrix, by sums and differences of pairs."""
    n = x.shape[1]
    factor = F32(1 / np.sqrt(block))
    for row in range(begin, end):
        for i in range(n):
            out[row, i] = x[row, i] * factor
        stride = 1
        while stride < block:
            for pair in range(0, n, 2 * stride):
                for i in range(pair, pair + stride):
                    low, high = out[row, i], out[row, i + stride]
                    out[row, i], out[row, i + stride] = low + high, low - high
            stride *= 2


@kernel_of("layer_norm")
def layer_norm(out: Array, x: Array, begin: int, end: int, eps: float) -> None:
    """out = (x - mean(x)) / sqrt(variance(x) + eps)."""
    n = x.shape[1]
    for row in range(begin, end):
        mean = sum_of(x[row]) / n
        scale = F32(1 / np.sqrt(sum_of_squares(x[row], mean) / n + eps))
        for i in range(n):
            out[row, i] = F32(x[row, i] - mean) * scale


def call_layer_norm_mul(node: Node, function: Callable[..., Any]) -> KernelCall:
    """The call of the kernel of `layer_norm_mul`. A missing bias is the weight, unread."""
    x, weight, *more = node.inputs
    rows = joined(node.shape[:-1], node.name)
    arrays = {
        "out": ArrayValue(node, (rows, node.shape[-1])),
        "x": ArrayValue(x, (rows, x.shape[-1])),
        "weight": ArrayValue(weight, weight.shape),
        "bias": ArrayValue(more[0] if more else weight, weight.shape),
    }
    attributes = {"eps": number(node.attributes, "eps"), "has_bias": bool(more)}
    return array_step(function, arrays, rows, attributes=attributes)


@kernel_of("layer_norm_mul", call=call_layer_norm_mul)
def layer_norm_mul(
    out: Array, x: Array, weight: Array, bias: Array, begin: int, end: int, eps: float, has_bias: bool
) -> None:
    """out = layer_norm(x) * weight (+ bias)."""
    n = x.shape[1]
    for row in range(begin, end):
        mean = sum_of(x[row]) / n
        scale = F32(1 / np.sqrt(sum_of_squares(x[row], mean) / n + eps))
        for i in range(n):
            y = F32(x[row, i] - mean) * scale * weight[i]
            out[row, i] = y + bias[i] if has_bias else y
