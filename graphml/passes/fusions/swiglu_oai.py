"""`swiglu_oai`: gpt-oss's clamped gate (OpenAI 2025, arXiv:2508.10925), with 1 added to the second."""

from __future__ import annotations

import numpy as np

from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array, Sample
from graphml.ir.ops.elementwise import clamp, gelu_quick, mul, scale
from graphml.ir.ops.rules import pairs
from graphml.passes.fusion import Fusion
from graphml.passes.fusions.swiglu import same_shape
from graphml.passes.rewrite import Match, Refusal

LIMIT = 7.0


def _decompose(g: Builder, gate: Node, up: Node) -> Node:
    gate, up = g.clamp(gate, float("-inf"), LIMIT), g.clamp(up, -LIMIT, LIMIT)
    return g.mul(g.gelu_quick(gate), g.scale(up, 1.0, offset=1.0))


def _far(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers, many of them beyond the limit."""
    return (8.0 * generator.standard_normal(shape)).astype(np.float32)


swiglu_oai = fused_op(
    "swiglu_oai",
    _decompose,
    lambda: [Sample(sample.inputs, fill=dict.fromkeys(range(2), _far)) for sample in pairs()],
    inplace=(0, 1),
)


def _held_alike(match: Match) -> Refusal | None:
    _, _, gate, shifted, up = match.covered
    wanted = (
        (gate, {"low": float("-inf"), "high": LIMIT}),
        (shifted, {"factor": 1.0, "offset": 1.0}),
        (up, {"low": -LIMIT, "high": LIMIT}),
    )
    for node, attributes in wanted:
        if dict(node.attributes) != attributes:
            return Refusal(f"{node.name} has {dict(node.attributes)}, not {attributes}", node)
    return same_shape(match)


FUSION = Fusion(
    "swiglu_oai",
    find=lambda gate, up: mul(gelu_quick(clamp(gate)), scale(clamp(up))),
    replace=swiglu_oai,
    when=_held_alike,
    attributes=lambda match: {},
)
