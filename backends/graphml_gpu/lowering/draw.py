"""Drawing tokens."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml_gpu.dispatch import Context, Dispatch, Lowering, Scalar, all_of, along, rows, width
from graphml_gpu.kernels.draw import draw

_GROUP = 32


def _lower(node: Node, context: Context) -> list[Dispatch]:
    ids, logits, log_sum, settings = node.inputs
    count = rows(node.shape)
    buffers = {"ids": ids, "logits": logits, "log_sum": log_sum, "settings": settings, "out": node}
    scalars: dict[str, Scalar] = {"rows": count, "k": width(ids)}
    return [Dispatch(draw, {"GROUP": _GROUP}, buffers, scalars, along(count, _GROUP))]


DRAW = Lowering(("draw",), _lower, refuses=lambda node: all_of(node, "f32", "i32"))
