"""`softcap`: soft limits, limit * tanh(x * factor) (Gemma 2, arXiv:2408.00118)."""

from __future__ import annotations

from collections.abc import Mapping

from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Sample
from graphml.ir.ops.elementwise import scale, tanh
from graphml.ir.ops.rules import singles
from graphml.passes.fusion import Fusion
from graphml.passes.rewrite import Match, Refusal


def _decompose(g: Builder, x: Node, factor: float, limit: float) -> Node:
    return g.scale(g.tanh(g.scale(x, factor)), limit)


softcap = fused_op(
    "softcap",
    _decompose,
    lambda: [Sample(sample.inputs, {"factor": 0.5, "limit": 2.0}) for sample in singles()],
    {"factor": None, "limit": None},
    inplace=(0,),
)


def _no_offset(match: Match) -> Refusal | None:
    for node in match.covered:
        if node.attributes.get("offset", 0.0) != 0.0:
            return Refusal(f"{node.name} adds an offset", node)
    return None


def _factors(match: Match) -> Mapping[str, Attribute]:
    outer, _, inner = match.covered
    return {"factor": inner.attributes["factor"], "limit": outer.attributes["factor"]}


FUSION = Fusion(
    "softcap",
    find=lambda x: scale(tanh(scale(x))),
    replace=softcap,
    when=_no_offset,
    attributes=_factors,
)
