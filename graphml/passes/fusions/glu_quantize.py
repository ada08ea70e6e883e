"""`swiglu_quantize` and `geglu_quantize`: a gated activation, quantised in the same kernel."""

from __future__ import annotations

from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Sample
from graphml.ir.ops.linear import quantize
from graphml.ir.ops.rules import ROWS, f32
from graphml.passes.fusion import Fusion
from graphml.passes.fusions.glu import geglu
from graphml.passes.fusions.swiglu import same_shape, swiglu


def _swiglu(g: Builder, gate: Node, up: Node, dtype: str) -> Node:
    return g.call(quantize, g.mul(g.silu(gate), up), dtype=dtype)


def _geglu(g: Builder, gate: Node, up: Node, dtype: str) -> Node:
    return g.call(quantize, g.mul(g.gelu(gate), up), dtype=dtype)


def _samples() -> list[Sample]:
    return [Sample((f32(ROWS, n), f32(ROWS, n)), {"dtype": "q8_1"}) for n in (32, 64, 288)]


swiglu_quantize = fused_op("swiglu_quantize", _swiglu, _samples, {"dtype": None})
geglu_quantize = fused_op("geglu_quantize", _geglu, _samples, {"dtype": None})

SWIGLU = Fusion(
    "swiglu_quantize",
    find=lambda gate, up: quantize(swiglu(gate, up)),
    replace=swiglu_quantize,
    when=same_shape,
)
GEGLU = Fusion(
    "geglu_quantize",
    find=lambda gate, up: quantize(geglu(gate, up)),
    replace=geglu_quantize,
    when=same_shape,
)
