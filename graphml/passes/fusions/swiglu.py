"""`swiglu`: silu(gate) * up (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.ops.elementwise import mul, silu
from graphml.ir.ops.rules import pairs
from graphml.passes.fusion import Fusion
from graphml.passes.rewrite import Match, Refusal


def _decompose(g: Builder, gate: Node, up: Node) -> Node:
    return g.mul(g.silu(gate), up)


swiglu = fused_op("swiglu", _decompose, pairs, inplace=(0, 1))


def same_shape(match: Match) -> Refusal | None:
    """Refuse a gate whose other operand is broadcast."""
    gate, up = match.variables["gate"], match.variables["up"]
    return None if gate.shape == up.shape else Refusal(f"{up.name} has another shape than {gate.name}", up)


FUSION = Fusion("swiglu", find=lambda gate, up: mul(silu(gate), up), replace=swiglu, when=same_shape)
