"""Products of two computed values, and unfused ones: float32 by float32."""

from __future__ import annotations

from functools import partial

from graphml.ir.node import Node
from graphml.ir.shape import bounds
from graphml_cpu.layouts import panel_scratch_bytes
from graphml_cpu.lowering.linear import panels_kernel
from graphml_cpu.lowering.step import Argument, Lowering, Scratch, Step, leading, row_bytes


def _lower(node: Node, threads: int, one_order: bool = False) -> list[Step]:
    weight, x = node.inputs
    n, k = bounds(weight.shape)
    arguments: dict[str, Argument] = {
        "w": weight,
        "x": x,
        "y": node,
        "residual": 0,
        "bias": 0,
        "n": n,
        "k": k,
        "row_bytes": row_bytes(weight),
        "x_stride": row_bytes(x),
        "y_stride": row_bytes(node),
        "scratch": Scratch(panel_scratch_bytes(k)),
        "rows": leading(x),
    }
    return [Step(panels_kernel("f32", one_order), arguments, writes=("y",))]


MUL_MAT = Lowering(("mul_mat",), _lower, one_order=partial(_lower, one_order=True))
