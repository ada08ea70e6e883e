"""`linear_id`: products with the chosen experts' matrices as the file stores them; no other is decoded."""

from __future__ import annotations

from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Sample
from graphml.ir.ops.linear import dequantize, mul_mat_id
from graphml.ir.ops.rules import ROWS, below, f32, i32, partly_below
from graphml.passes.fusion import Fusion
from graphml.passes.fusions.linear import weight_is_a_tensor


def _decompose(g: Builder, weight: Node, x: Node, ids: Node) -> Node:
    """Weight [E, N, K] and x [T, K] or [T, used, K], both of any dtype, ids [T, used] -> [T, used, N]."""
    return g.mul_mat_id(weight, g.dequantize(x), ids)


def _samples() -> list[Sample]:
    weight, ids, fill = f32(6, 24, 32), i32(ROWS, 2), {2: below(6)}
    return [
        Sample((weight, f32(ROWS, 32), ids), fill=fill),
        Sample((weight, f32(ROWS, 2, 32), ids), fill=fill),
        Sample((weight, f32(ROWS, 32), ids), fill={2: partly_below(6)}),
    ]


linear_id = fused_op("linear_id", _decompose, _samples)


FUSION = Fusion(
    "dequant_mul_mat_id",
    find=(
        lambda weight, x, ids: mul_mat_id(dequantize(weight), x, ids),
        lambda weight, x, ids: mul_mat_id(weight, x, ids),
    ),
    replace=linear_id,
    when=weight_is_a_tensor,
    attributes=lambda match: {},
)
