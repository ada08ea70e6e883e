"""Kernels of rows that come with ops of one's own: how a node of such an op is called."""

from __future__ import annotations

import functools
import importlib.util

from graphml.ir.node import Node
from graphml.ir.op import Op
from graphml.ir.own_op import OwnKernel, OwnOp
from graphml_cpu.array_kernels.row_kernels import check_parameters, refuses_rows, row_step
from graphml_cpu.lowering.step import CpuLowering


def own_lowering(op: Op, backend: str) -> CpuLowering | None:
    """The lowering of an op that has a kernel for a backend; None for any other op."""
    kernel = op.kernels.get(backend) if isinstance(op, OwnOp) else None
    return _lowering(op, kernel, backend) if isinstance(op, OwnOp) and kernel is not None else None


@functools.cache
def _lowering(op: OwnOp, kernel: OwnKernel, backend: str) -> CpuLowering:
    check_parameters(kernel.function, op.declared, backend, kernel.options)

    def refuses(node: Node) -> str | None:
        if importlib.util.find_spec("numba") is None:
            return f"the kernel of {op.name} needs numba; in a clone of graphml: pip install '.[numba]'"
        return refuses_rows(node)

    return CpuLowering(
        (op.name,), lambda node, threads: [row_step(node, kernel.function, options=kernel.options)], refuses
    )
