"""`kernel_of`: marks a plain function as the kernel of some ops.

    @kernel_of("silu")
    def silu(out, x, begin, end):
        for row in range(begin, end):
            for i in range(out.shape[1]):
                out[row, i] = x[row, i] / (F32(1.0) + exp(-x[row, i]))

The function gets the results, the operands, the range of rows that this thread computes, and attributes by
name; see `graphml_cpu.array_kernels.row_kernels`. `call` is for an op whose operands are seen otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from graphml_cpu.array_kernels.row_kernels import refuses_rows, row_step
from graphml_cpu.lowering.step import CpuLowering, KernelCall

from graphml.ir.node import Node

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
Call = Callable[[Node, Callable[..., Any]], KernelCall]


def kernel_of(
    *ops: str, call: Call = row_step, refuses: Callable[[Node], str | None] = refuses_rows
) -> Callable[[Kernel], Kernel]:
    """Mark a function as the kernel of ops of these names.

    call: the call of the function for a node. refuses: why a node has no kernel; None where it has one.
    """

    def mark(function: Kernel) -> Kernel:
        function.lowering = CpuLowering(ops, lambda node, threads: [call(node, function)], refuses=refuses)  # type: ignore[attr-defined]
        return function

    return mark


def lowerings_of(module: ModuleType) -> dict[str, CpuLowering]:
    """Op name -> lowering of every marked function of a module."""
    by_op: dict[str, CpuLowering] = {}
    for value in vars(module).values():
        lowering = getattr(value, "lowering", None)
        if isinstance(lowering, CpuLowering):
            by_op |= dict.fromkeys(lowering.ops, lowering)
    return by_op
