"""`gelu_quantize`: an activation without a gate, quantised in the same kernel."""

from __future__ import annotations

from graphml.ir.fused import fused_op
from graphml.ir.op import Sample
from graphml.ir.ops.elementwise import gelu
from graphml.ir.ops.linear import quantize
from graphml.ir.ops.rules import ROWS, f32
from graphml.passes.fusion import Fusion

gelu_quantize = fused_op(
    "gelu_quantize",
    lambda g, x, dtype: g.call(quantize, g.gelu(x), dtype=dtype),
    lambda: [Sample((f32(ROWS, n),), {"dtype": "q8_1"}) for n in (32, 64, 288)],
    {"dtype": None},
)

FUSION = Fusion("gelu_quantize", find=lambda x: quantize(gelu(x)), replace=gelu_quantize)
