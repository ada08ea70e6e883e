"""`rms_norm_mul_quantize`: a norm, quantised in the same kernel."""

from __future__ import annotations

from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Sample
from graphml.ir.ops.linear import quantize
from graphml.ir.ops.rules import ROWS, f32
from graphml.passes.fusion import Fusion
from graphml.passes.fusions.norm_mul import FAINT, one_row, rms_norm_mul


def _decompose(g: Builder, x: Node, weight: Node, eps: float, dtype: str) -> Node:
    return g.make(quantize, g.rms_norm(x, weight, eps), dtype=dtype)


rms_norm_mul_quantize = fused_op(
    "rms_norm_mul_quantize",
    _decompose,
    lambda: [
        *(Sample((f32(ROWS, n), f32(n)), {"dtype": "q8_1"}) for n in (32, 64, 576)),
        Sample((f32(ROWS, 64), f32(64)), {"dtype": "q8_1"}, {0: FAINT}),
    ],
    {"eps": 1e-5, "dtype": None},
)


FUSION = Fusion(
    "rms_norm_mul_quantize",
    find=lambda x, weight: quantize(rms_norm_mul(x, weight)),
    replace=rms_norm_mul_quantize,
    when=one_row,
)
