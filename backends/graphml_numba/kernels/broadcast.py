"""add, sub, mul and div, whose second operand may be broadcast, see `graphml.ir.ops.rules.broadcast`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from graphml_cpu.array_kernels.step import ArrayValue, array_step, joined
from graphml_cpu.lowering.step import Step, one_symbol

from graphml.ir.node import Node
from graphml_numba.helpers import Array, Number
from graphml_numba.kernel_of import kernel_of

DIMS = 4
"""Dimensions that kernels see: of a value with fewer, the first ones are 1."""


def refuses(node: Node) -> str | None:
    """Why an op has no kernel."""
    too_many = len(node.shape) > DIMS
    return f"{node.name} has more than {DIMS} dimensions" if too_many else one_symbol(node)


def in_four(value: Node) -> ArrayValue:
    """A value with all dimensions that kernels see."""
    return ArrayValue(value, ((1,) * (DIMS - len(value.shape)) + value.shape))


def call(node: Node, function: Callable[..., Any]) -> Step:
    """The call of a kernel; its rows are those of a and out."""
    a, b = node.inputs
    arrays = {"out": in_four(node), "a": in_four(a), "b": in_four(b)}
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
