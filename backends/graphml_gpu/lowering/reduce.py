"""Softmax and sums over the last dimension."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml_gpu.dispatch import Context, Dispatch, Lowering, Scalar, all_of, along, rows, width
from graphml_gpu.kernels.reduce import softmax, sum_rows
from graphml_gpu.lowering.groups import for_row


def _lower(node: Node, context: Context) -> list[Dispatch]:
    x = node.inputs[0]
    kernel = {"softmax": softmax, "sum_rows": sum_rows}[node.op.name]
    count = rows(x.shape[:-1])
    scalars: dict[str, Scalar] = {"rows": count, "n": width(x)}
    return [Dispatch(kernel, for_row(width(x)), {"x": x, "out": node}, scalars, along(count))]


REDUCE = Lowering(("softmax", "sum_rows"), _lower, refuses=lambda node: all_of(node, "f32"))
