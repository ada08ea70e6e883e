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
        weight, bias = (node.inputs[i] if len(node.inputs) > i else 0 for i in (1, 2))
        arguments |= {"weight": weight, "bias": bias}
    return [Step(KernelRef(name, "graphml_cpu.kernels.norm", f"make_{name}"), arguments)]


NORM = Lowering(
    ("rms_norm", "rms_norm_mul", "layer_norm", "layer_norm_mul", "l2_norm"),
    _lower,
    refuses=one_symbol,
    replicable=True,
)
