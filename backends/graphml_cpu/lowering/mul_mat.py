"""Products of two computed values, and unfused ones: float32 by float32."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import Symbol, bounds
from graphml_cpu.compiler import KernelRef
from graphml_cpu.layouts import panel_scratch_bytes
from graphml_cpu.lowering.step import Argument, Lowering, Scratch, Step, leading, one_symbol, row_bytes


def _refuses(node: Node) -> str | None:
    weight = node.inputs[0]
    symbolic = any(isinstance(dim, Symbol) for dim in weight.shape)
    return f"{weight.name} has a symbolic dimension" if symbolic else one_symbol(node)


def _lower(node: Node, threads: int) -> list[Step]:
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
    ref = KernelRef(
        "mul_mat_panels-f32", "graphml_cpu.kernels.products.mul_mat_panels", "make_mul_mat_panels", ("f32",)
    )
    return [Step(ref, arguments, writes=("y",))]


MUL_MAT = Lowering(("mul_mat",), _lower, refuses=_refuses)
