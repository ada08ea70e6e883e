"""Mixture of experts around the products: normalised expert weights, and the weighted sum of the outputs."""

from __future__ import annotations

from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Sample
from graphml.ir.ops.elementwise import clamp, div, mul
from graphml.ir.ops.index import gather
from graphml.ir.ops.layout import permute, reshape
from graphml.ir.ops.reduce import sum_rows
from graphml.ir.ops.rules import ROWS, below, f32, i32, partly_below
from graphml.ir.shape import fixed
from graphml.passes.fusion import Fusion
from graphml.passes.rewrite import Match, Refusal


def _weights(g: Builder, x: Node, ids: Node, low: float, high: float) -> Node:
    """X [T, E] at ids [T, U], divided by their sum clamped to [low, high]: [T, U]."""
    chosen = g.gather(x, ids)
    return g.div(chosen, g.clamp(g.sum_rows(chosen), low, high))


def _weight_samples() -> list[Sample]:
    limits = {"low": 0.5, "high": 2.0}
    fills = ((12, 3, below(12)), (6, 1, below(6)), (12, 3, partly_below(12)))
    return [Sample((f32(ROWS, n), i32(ROWS, k)), limits, {1: fill}) for n, k, fill in fills]


gather_normalise = fused_op("gather_normalise", _weights, _weight_samples, {"low": None, "high": None})

WEIGHTS = Fusion(
    "gather_normalise",
    find=lambda x, ids: div(gather(x, ids), clamp(sum_rows(gather(x, ids)))),
    replace=gather_normalise,
    when=lambda match: _dtype_of_floats(match.variables["x"]),
)


def _dtype_of_floats(x: Node) -> Refusal | None:
    return None if x.dtype.name == "f32" else Refusal(f"{x.name} is {x.dtype.name}", x)


def _combine(g: Builder, y: Node, weights: Node) -> Node:
    """Y [T, U, D] and weights [T, U] -> the weighted sum over U, [T, D]."""
    used, width = fixed(y.shape[1]), fixed(y.shape[2])
    weighted = g.mul(y, g.reshape(weights, used, 1))
    return g.reshape(g.sum_rows(g.permute(weighted, 0, 2, 1)), width)


combine_experts = fused_op(
    "combine_experts",
    _combine,
    lambda: [Sample((f32(ROWS, used, n), f32(ROWS, used))) for used, n in ((2, 64), (4, 70), (1, 7))],
)


def _over_the_middle(match: Match) -> Refusal | None:
    """Require weights over the middle dimension, which the permutation puts last and the sum removes."""
    y, weights = match.variables["y"], match.variables["weights"]
    root, _, permuted, _, spread = match.covered
    if len(y.shape) != 3 or weights.shape != y.shape[:2] or spread.shape != (*y.shape[:2], 1):
        return Refusal(f"{spread.name} is not one number for each of {y.name}'s rows", spread)
    if permuted.attributes["axes"] != (0, 2, 1):
        return Refusal(f"{permuted.name} does not put the middle dimension last", permuted)
    if root.shape != (y.shape[0], y.shape[2]):
        return Refusal(f"{root.name} has not the shape of a sum over the middle dimension", root)
    return None


COMBINE = Fusion(
    "combine_experts",
    find=lambda y, weights: reshape(sum_rows(permute(mul(y, reshape(weights))))),
    replace=combine_experts,
    when=_over_the_middle,
    attributes=lambda match: {},
)
