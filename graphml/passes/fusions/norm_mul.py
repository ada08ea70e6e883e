"""`rms_norm_mul`: a root-mean-square norm and its weight."""

from __future__ import annotations

from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Sample
from graphml.ir.ops.elementwise import mul
from graphml.ir.ops.norm import rms_norm
from graphml.ir.ops.rules import ROWS, f32, sized
from graphml.passes.fusion import Fusion
from graphml.passes.rewrite import Match, Refusal

FAINT = sized(1e-5**0.5)  # rows whose mean square is near the samples' eps


def _decompose(g: Builder, x: Node, weight: Node, eps: float) -> Node:
    return g.rms_norm(x, weight, eps)


rms_norm_mul = fused_op(
    "rms_norm_mul",
    _decompose,
    lambda: [
        *(Sample((f32(ROWS, n), f32(n))) for n in (7, 64, 576)),
        Sample((f32(ROWS, 64), f32(64)), fill={0: FAINT}),
    ],
    {"eps": 1e-5},
    inplace=(0,),
)


def one_row(match: Match) -> Refusal | None:
    """Refuse a weight other than one row for all rows of x."""
    weight, x = match.variables["weight"], match.variables["x"]
    if weight.shape == x.shape[-1:]:
        return None
    return Refusal(f"{weight.name} is not one row as wide as {x.name}", weight)


FUSION = Fusion(
    "rms_norm_mul", find=lambda x, weight: mul(rms_norm(x), weight), replace=rms_norm_mul, when=one_row
)
