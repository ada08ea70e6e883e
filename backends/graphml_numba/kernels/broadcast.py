"""Ops whose operands may be broadcast, see `graphml.ir.ops.rules.broadcast`: of pairs, and `where`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from graphml_cpu.array_kernels.step import ArrayValue, array_step, joined
from graphml_cpu.lowering.step import KernelCall

from graphml.ir.node import Node
from graphml_numba.helpers import Array, Number, helper
from graphml_numba.kernel_of import kernel_of

DIMS = 4
"""Dimensions that kernels see: of a value with fewer, the first ones are 1."""


def refuses(node: Node) -> str | None:
    """Why an op has no kernel."""
    return f"{node.name} has more than {DIMS} dimensions" if len(node.shape) > DIMS else None


def in_four(value: Node) -> ArrayValue:
    """A value with all dimensions that kernels see."""
    return ArrayValue(value, ((1,) * (DIMS - len(value.shape)) + value.shape))


def call(node: Node, function: Callable[..., Any]) -> KernelCall:
    """The call of a kernel; its rows are those of a and out."""
    names = ("a", "b") if len(node.inputs) == 2 else ("mask", "a", "b")
    arrays = {"out": in_four(node)} | {
        name: in_four(value) for name, value in zip(names, node.inputs, strict=True)
    }
    return array_step(function, arrays, joined(node.shape[:-1], node.name), name=node.op.name)


def of_pairs(formula: Callable[[Number, Number], Number]) -> Callable[..., Any]:
    """out = formula(a, b); a dimension of b is that of a, or 1."""

    def kernel(out: Array, a: Array, b: Array, begin: int, end: int) -> None:
        _, size_1, size_2, n = a.shape
        for row in range(begin, end):
            i, j, k = row // (size_1 * size_2), row // size_2 % size_1, row % size_2
            x, y = a[i, j, k], out[i, j, k]
            z = b[min(i, b.shape[0] - 1), min(j, b.shape[1] - 1), min(k, b.shape[2] - 1)]
            if z.shape[0] == n:
                for c in range(n):
                    y[c] = formula(x[c], z[c])
            else:
                number = z[0]
                for c in range(n):
                    y[c] = formula(x[c], number)

    return kernel


add = kernel_of("add", call=call, refuses=refuses)(of_pairs(operator.add))
sub = kernel_of("sub", call=call, refuses=refuses)(of_pairs(operator.sub))
mul = kernel_of("mul", call=call, refuses=refuses)(of_pairs(operator.mul))
div = kernel_of("div", call=call, refuses=refuses)(of_pairs(operator.truediv))


@helper
def _maximum(a: Number, b: Number) -> Number:
    return a if a > b or a != a else b


@helper
def _minimum(a: Number, b: Number) -> Number:
    return a if a < b or a != a else b


maximum = kernel_of("maximum", call=call, refuses=refuses)(of_pairs(_maximum))
minimum = kernel_of("minimum", call=call, refuses=refuses)(of_pairs(_minimum))
less = kernel_of("less", call=call, refuses=refuses)(of_pairs(operator.lt))
less_equal = kernel_of("less_equal", call=call, refuses=refuses)(of_pairs(operator.le))
equal = kernel_of("equal", call=call, refuses=refuses)(of_pairs(operator.eq))


@kernel_of("where", call=call, refuses=refuses)
def where(out: Array, mask: Array, a: Array, b: Array, begin: int, end: int) -> None:
    """out = a where the mask is not 0, else b; a dimension of the mask and of b is that of a, or 1."""
    _, size_1, size_2, n = a.shape
    for row in range(begin, end):
        i, j, k = row // (size_1 * size_2), row // size_2 % size_1, row % size_2
        m = mask[min(i, mask.shape[0] - 1), min(j, mask.shape[1] - 1), min(k, mask.shape[2] - 1)]
        z = b[min(i, b.shape[0] - 1), min(j, b.shape[1] - 1), min(k, b.shape[2] - 1)]
        for c in range(n):
            taken = m[min(c, m.shape[0] - 1)] != 0
            out[i, j, k, c] = a[i, j, k, c] if taken else z[min(c, z.shape[0] - 1)]
