"""Softmax and sums over the last dimension."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml_cpu.compiler import KernelRef
from graphml_cpu.lowering.step import Argument, Lowering, Step, leading, one_symbol, row_bytes, width

_MODULE = "graphml_cpu.kernels.reduce"


def _lower(node: Node, threads: int) -> list[Step]:
    x, op = node.inputs[0], node.op.name
    arguments: dict[str, Argument] = {
        "x": x,
        "out": node,
        "n": width(x),
        "x_stride": row_bytes(x),
        "rows": leading(x),
    }
    if op == "softmax":
        arguments["out_stride"] = row_bytes(node)
    return [Step(KernelRef(op, _MODULE, f"make_{op}"), arguments)]


REDUCE = Lowering(("softmax", "sum_rows"), _lower, refuses=one_symbol, replicable=True)
