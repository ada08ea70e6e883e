"""`layer_norm_mul`: a mean-and-variance norm with its weight, and its bias if it has one."""

from __future__ import annotations

from graphml.errors import ShapeError
from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Sample
from graphml.ir.ops.elementwise import add, mul
from graphml.ir.ops.norm import layer_norm
from graphml.ir.ops.rules import ROWS, f32
from graphml.passes.fusion import Fusion
from graphml.passes.fusions.norm_mul import FAINT, one_row
from graphml.passes.rewrite import Match, Refusal


def _decompose(g: Builder, x: Node, weight: Node, *extra: Node, eps: float, bias: bool) -> Node:
    if len(extra) != bias:
        raise ShapeError(f"wanted {int(bias)} operands after the weight; got {list(extra)}")
    return g.layer_norm(x, weight, extra[0] if bias else None, eps)


def _samples() -> list[Sample]:
    plain = [Sample((f32(ROWS, n), f32(n))) for n in (7, 64, 576)]
    plain.append(Sample((f32(ROWS, 64), f32(64)), fill={0: FAINT}))
    return [*plain, *(Sample((f32(ROWS, n), f32(n), f32(n)), {"bias": True}) for n in (7, 64, 576))]


layer_norm_mul = fused_op("layer_norm_mul", _decompose, _samples, {"eps": 1e-5, "bias": False}, inplace=(0,))


def _bias_fits(match: Match) -> Refusal | None:
    bias, normed = match.variables["bias"], match.covered[-1]
    if normed.attributes["bias"]:
        return Refusal(f"{normed.name} has a bias already", normed)
    if bias.shape != normed.shape[-1:]:
        return Refusal(f"{bias.name} is not one row as wide as {normed.name}", bias)
    return None


WEIGHT = Fusion(
    "layer_norm_mul",
    find=lambda x, weight: mul(layer_norm(x), weight),
    replace=layer_norm_mul,
    when=one_row,
)
BIAS = Fusion(
    "layer_norm_bias",
    find=lambda x, weight, bias: add(layer_norm_mul(x, weight), bias),
    replace=layer_norm_mul,
    when=_bias_fits,
    attributes=lambda match: {"eps": match.covered[-1].attributes["eps"], "bias": True},
)
