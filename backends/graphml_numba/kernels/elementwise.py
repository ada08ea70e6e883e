"""Elementwise ops of one operand, see `graphml.ir.ops.elementwise`; the gates among the fused ops.

A formula is a helper of one number; `of_one` and `gate_of` make kernels of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from graphml_cpu.array_kernels.step import ArrayValue, array_step, joined
from graphml_cpu.lowering.step import KernelCall

from graphml.ir.node import Node
from graphml_numba.helpers import F32, F64, Array, Number, helper
from graphml_numba.kernel_of import kernel_of
from graphml_numba.kernels.exponential import exp, sigmoid, tanh

BLOCK = 1024
"""Elements computed together: out may be the memory of x, so results are first kept elsewhere."""
ZERO, HALF, ONE = F32(0), F32(0.5), F32(1)


def of_one(formula: Callable[[Number], Number]) -> Callable[..., Any]:
    """out = formula(x)."""

    @helper
    def computed(x: Array, y: Array) -> None:
        for i in range(x.shape[0]):
            y[i] = formula(x[i])

    def kernel(out: Array, x: Array, begin: int, end: int) -> None:
        y, n = np.empty(BLOCK, F32), x.shape[1]
        for row in range(begin, end):
            for first in range(0, n, BLOCK):
                last = min(first + BLOCK, n)
                computed(x[row, first:last], y)
                out[row, first:last] = y[: last - first]

    return kernel


def gate_of(formula: Callable[[Number], Number]) -> Callable[..., Any]:
    """out = formula(gate) * up."""

    @helper
    def computed(gate: Array, up: Array, y: Array) -> None:
        for i in range(gate.shape[0]):
            y[i] = formula(gate[i]) * up[i]

    def kernel(out: Array, gate: Array, up: Array, begin: int, end: int) -> None:
        y, n = np.empty(BLOCK, F32), gate.shape[1]
        for row in range(begin, end):
            for first in range(0, n, BLOCK):
                last = min(first + BLOCK, n)
                computed(gate[row, first:last], up[row, first:last], y)
                out[row, first:last] = y[: last - first]

    return kernel


# --- formulas


@helper
def _sqr(x: Number) -> Number:
    return x * x


@helper
def _relu(x: Number) -> Number:
    return ZERO if x < ZERO else x  # a NaN passes


@helper
def _silu(x: Number) -> Number:
    return x / (ONE + exp(-x))


@helper
def _gelu(x: Number) -> Number:
    """x/2 (1 + tanh(u)), which is x times the sigmoid of 2 u; 2 sqrt(2 / pi) is 1.5957691."""
    return x / (ONE + exp(x * (ONE + F32(0.044715) * x * x) * F32(-1.5957691216057308)))


@helper
def _gelu_quick(x: Number) -> Number:
    return x / (ONE + exp(x * F32(-1.702)))


@helper
def _erf(x: Number) -> Number:
    """Two polynomials: near 0 in x * x, elsewhere of the logarithm of 1 - erf(|x|)."""
    size, square = abs(x), x * x
    r = F32(3.83197126e-4) - F32(1.72853470e-5) * size
    r = r * square + (F32(2.42546219e-2) - F32(3.88396438e-3) * size)
    r = r * size - F32(1.06777877e-1)
    r = r * size - F32(6.34846687e-1)
    r = r * size - F32(1.28717512e-1)
    far = ONE if size > F32(4) else ONE - exp(r * size - size)
    p = F32(4.99119423e-3) - F32(5.96761703e-4) * square
    p = p * square - F32(2.67681349e-2)
    p = p * square + F32(1.12819925e-1)
    p = p * square - F32(3.76125336e-1)
    p = p * square + F32(1.28379166e-1)
    signed = -far if x < ZERO else far
    return signed if size > F32(0.927734375) else p * x + x


@helper
def _gelu_erf(x: Number) -> Number:
    return HALF * x * (ONE + _erf(x * F32(0.7071067811865476)))


@helper
def _softplus(x: Number) -> Number:
    return x if x > F32(20) else np.log1p(exp(x))


# --- kernels

neg = kernel_of("neg")(of_one(operator.neg))
absolute = kernel_of("abs")(of_one(abs))
sqr = kernel_of("sqr")(of_one(_sqr))
sqrt = kernel_of("sqrt")(of_one(np.sqrt))
exp_of_rows = kernel_of("exp")(of_one(exp))
log = kernel_of("log")(of_one(np.log))
floor = kernel_of("floor")(of_one(np.floor))
round_even = kernel_of("round")(of_one(np.rint))
tanh_of_rows = kernel_of("tanh")(of_one(tanh))
sigmoid_of_rows = kernel_of("sigmoid")(of_one(sigmoid))
relu = kernel_of("relu")(of_one(_relu))
silu = kernel_of("silu")(of_one(_silu))
gelu = kernel_of("gelu")(of_one(_gelu))
gelu_erf = kernel_of("gelu_erf")(of_one(_gelu_erf))
gelu_quick = kernel_of("gelu_quick")(of_one(_gelu_quick))
softplus = kernel_of("softplus")(of_one(_softplus))
swiglu = kernel_of("swiglu")(gate_of(_silu))
geglu = kernel_of("geglu")(gate_of(_gelu))
geglu_erf = kernel_of("geglu_erf")(gate_of(_gelu_erf))
geglu_quick = kernel_of("geglu_quick")(gate_of(_gelu_quick))
reglu = kernel_of("reglu")(gate_of(_relu))


def _each(node: Node, function: Callable[..., Any]) -> KernelCall:
    """The call of a kernel of elements: positions [T] have no rows of a known width."""
    count = joined(node.shape, node.name)
    arrays = {"out": ArrayValue(node, (count,)), "x": ArrayValue(node.inputs[0], (count,))}
    return array_step(function, arrays, count, name=node.op.name)


@kernel_of("cast", call=_each, refuses=lambda node: None)
def cast(out: Array, x: Array, begin: int, end: int) -> None:
    """out = x as the other of float32 and int32: toward zero and within the range, 0 for NaN."""
    for i in range(begin, end):
        y = F64(x[i])
        out[i] = min(max(y, F64(-(2**31))), F64(2**31 - 1)) if y == y else F64(0)


@kernel_of("scale")
def scale(out: Array, x: Array, begin: int, end: int, factor: float, offset: float) -> None:
    """out = x * factor + offset."""
    for row in range(begin, end):
        for i in range(x.shape[1]):
            out[row, i] = x[row, i] * factor + offset


@kernel_of("clamp")
def clamp(out: Array, x: Array, begin: int, end: int, low: float, high: float) -> None:
    """out = x within low and high; a NaN passes."""
    for row in range(begin, end):
        for i in range(x.shape[1]):
            y = low if x[row, i] < low else x[row, i]
            out[row, i] = high if y > high else y


@kernel_of("softcap")
def softcap(out: Array, x: Array, begin: int, end: int, factor: float, limit: float) -> None:
    """out = limit * tanh(x * factor)."""
    for row in range(begin, end):
        for i in range(x.shape[1]):
            out[row, i] = limit * tanh(x[row, i] * factor)
