"""Gates other than SwiGLU: an activation of one value times another (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

from graphml.ir.fused import fused_op
from graphml.ir.ops.elementwise import gelu, gelu_erf, gelu_quick, mul, relu
from graphml.ir.ops.rules import pairs
from graphml.passes.fusion import Fusion
from graphml.passes.fusions.swiglu import same_shape

geglu = fused_op("geglu", lambda g, gate, up: g.mul(g.gelu(gate), up), pairs, inplace=(0, 1))
geglu_erf = fused_op(
    "geglu_erf", lambda g, gate, up: g.mul(g.call(gelu_erf, gate), up), pairs, inplace=(0, 1)
)
geglu_quick = fused_op(
    "geglu_quick", lambda g, gate, up: g.mul(g.call(gelu_quick, gate), up), pairs, inplace=(0, 1)
)
reglu = fused_op("reglu", lambda g, gate, up: g.mul(g.call(relu, gate), up), pairs, inplace=(0, 1))

GEGLU = Fusion("geglu", find=lambda gate, up: mul(gelu(gate), up), replace=geglu, when=same_shape)
GEGLU_ERF = Fusion(
    "geglu_erf", find=lambda gate, up: mul(gelu_erf(gate), up), replace=geglu_erf, when=same_shape
)
GEGLU_QUICK = Fusion(
    "geglu_quick", find=lambda gate, up: mul(gelu_quick(gate), up), replace=geglu_quick, when=same_shape
)
REGLU = Fusion("reglu", find=lambda gate, up: mul(relu(gate), up), replace=reglu, when=same_shape)
