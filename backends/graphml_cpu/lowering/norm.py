"""Norms over the last dimension."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml_cpu.compiler import KernelRef
from graphml_cpu.lowering.step import Argument, Lowering, Step, leading, number, one_symbol, row_bytes, width


def _lower(node: Node, threads: int) -> list[Step]:
    name = node.op.name.removesuffix("_mul")
    x = node.inputs[0]
    arguments: dict[str, Argument] = {
        "x": x,
        "out": node,
        "n": width(x),
        "eps": number(node, "eps"),
        "x_stride": row_bytes(x),
        "out_stride": row_bytes(node),
        "rows": leading(x),
    }
    if name != "l2_norm":
        arguments |= {"weight": node.inputs[1] if len(node.inputs) > 1 else 0, "bias": 0}
    return [Step(KernelRef(name, "graphml_cpu.kernels.norm", f"make_{name}"), arguments)]


NORM = Lowering(
    ("rms_norm", "rms_norm_mul", "layer_norm", "l2_norm"), _lower, refuses=one_symbol, replicable=True
)
