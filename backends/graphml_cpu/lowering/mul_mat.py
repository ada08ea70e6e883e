"""Products of two computed values, and unfused ones: float32 by float32."""

from __future__ import annotations

from functools import partial

from graphml.ir.node import Node
from graphml.ir.shape import bounds
from graphml_cpu.layouts import panel_scratch_bytes
from graphml_cpu.lowering.linear import panels_kernel
from graphml_cpu.lowering.step import CpuLowering, KernelCall, Scratch, leading, one_step, row_bytes


def _lower(node: Node, threads: int, one_order: bool = False) -> list[KernelCall]:
    weight, x = node.inputs
    n, k = bounds(weight.shape)
    ref = panels_kernel("f32", one_order)
    return one_step(
        ref, ("y",), w=weight, x=x, y=node, residual=0, bias=0, n=n, k=k, row_bytes=row_bytes(weight),
        x_stride=row_bytes(x), y_stride=row_bytes(node), scratch=Scratch(panel_scratch_bytes(k)),
        rows=leading(x),
    )  # fmt: skip


MUL_MAT = CpuLowering(("mul_mat",), _lower, one_order=partial(_lower, one_order=True))
