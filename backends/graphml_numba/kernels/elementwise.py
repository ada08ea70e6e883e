"""Elementwise ops, see `graphml.ir.ops.elementwise`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.row_kernels import row_step
from graphml_cpu.array_kernels.step import ArrayValue, array_step, joined
from graphml_cpu.lowering.step import Step, one_symbol

from graphml.ir.node import Node
from graphml.ir.shape import Dim, Symbol
from graphml_numba.helpers import F32, Array, Number, helper
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.exponential import HALF, ONE, erf, exp, sigmoid, tanh

Maker = Callable[[str], Callable[..., Any]]
GELU, GELU_CUBE, ROOT_HALF = F32(math.sqrt(2 / math.pi)), F32(0.044715), F32(math.sqrt(0.5))
LINEAR_FROM = F32(20.0)


@helper
def gelu(x: Number) -> Number:
    """Hendrycks and Gimpel 2016 (arXiv:1606.08415), by tanh."""
    return HALF * x * (ONE + tanh(GELU * x * (ONE + GELU_CUBE * x * x)))


@helper
def softplus(x: Number) -> Number:
    """log(1 + exp(x)), x itself where it is large."""
    return x if x > LINEAR_FROM else F32(math.log1p(exp(x)))


@helper
def relu(x: Number) -> Number:
    """max(x, 0), NaN kept."""
    return F32(0.0) if x < 0 else x


UNARY: Mapping[str, Callable[[Number], Number]] = {
    "neg": helper(lambda x: -x),
    "abs": helper(lambda x: abs(x)),
    "sqr": helper(lambda x: x * x),
    "sqrt": helper(lambda x: np.sqrt(x)),
    "exp": exp,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "relu": relu,
    "silu": helper(lambda x: x * sigmoid(x)),
    "gelu": gelu,
    "gelu_erf": helper(lambda x: HALF * x * (ONE + erf(x * ROOT_HALF))),
    "gelu_quick": helper(lambda x: x * sigmoid(F32(1.702) * x)),
    "softplus": softplus,
}
BINARY: Mapping[str, Callable[[Number, Number], Number]] = {
    "add": helper(lambda a, b: a + b),
    "sub": helper(lambda a, b: a - b),
    "mul": helper(lambda a, b: a * b),
    "div": helper(lambda a, b: a / b),
}


def call_made(node: Node, make: Maker) -> Step:
    """The call of the kernel that is made for an op's name, by rows."""
    return row_step(node, make(node.op.name), name=node.op.name)


@kernel_of(*UNARY, call=call_made)
@functools.cache
def unary(op: str) -> Callable[..., Any]:
    """out = op(x)."""
    function = UNARY[op]

    def kernel(out: Array, x: Array, begin: int, end: int) -> None:
        for row in range(begin, end):
            for i in range(x.shape[1]):
                out[row, i] = function(x[row, i])

    return kernel


@kernel_of("scale")
def scale(out: Array, x: Array, begin: int, end: int, factor: float, offset: float) -> None:
    """out = x * factor + offset."""
    for row in range(begin, end):
        for i in range(x.shape[1]):
            out[row, i] = x[row, i] * factor + offset


@kernel_of("clamp")
def clamp(out: Array, x: Array, begin: int, end: int, low: float, high: float) -> None:
    """x between low and high, NaN kept."""
    for row in range(begin, end):
        for i in range(x.shape[1]):
            value = x[row, i]
            value = low if value < low else value
            out[row, i] = high if value > high else value


@kernel_of("swiglu")
def swiglu(out: Array, gate: Array, up: Array, begin: int, end: int) -> None:
    """silu(gate) * up."""
    for row in range(begin, end):
        for i in range(out.shape[1]):
            out[row, i] = gate[row, i] * sigmoid(gate[row, i]) * up[row, i]


N_DIMS = 4


def padded(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The shape with leading dimensions of 1: `N_DIMS` in all."""
    return (1,) * (N_DIMS - len(shape)) + shape


def refuses_dims(node: Node) -> str | None:
    """Why a value is not taken as rows of `N_DIMS` dimensions."""
    if len(node.shape) > N_DIMS or isinstance(node.shape[-1], Symbol):
        return f"{node.name} has more than {N_DIMS} dimensions, or rows of a symbolic width"
    return one_symbol(node)


def call_binary(node: Node, make: Maker) -> Step:
    """The call of the kernel of an op of two values; the second may have dimensions of 1."""
    a, b = node.inputs
    arrays = {name: ArrayValue(one, padded(one.shape)) for name, one in (("out", node), ("a", a), ("b", b))}
    return array_step(make(node.op.name), arrays, joined(node.shape[:-1], node.name), name=node.op.name)


@kernel_of(*BINARY, call=call_binary, refuses=refuses_dims)
@functools.cache
def binary(op: str) -> Callable[..., Any]:
    """out = op(a, b), b stretched along its dimensions of 1."""
    function = BINARY[op]

    def kernel(out: Array, a: Array, b: Array, begin: int, end: int) -> None:
        _, n_1, n_2, n = out.shape
        for row in range(begin, end):
            i, j, k = row // (n_1 * n_2), row // n_2 % n_1, row % n_2
            x, y = a[i, j, k], b[min(i, b.shape[0] - 1), min(j, b.shape[1] - 1), min(k, b.shape[2] - 1)]
            if len(y) == n:
                for column in range(n):
                    out[i, j, k, column] = function(x[column], y[column])
            else:
                for column in range(n):
                    out[i, j, k, column] = function(x[column], y[0])

    return kernel
