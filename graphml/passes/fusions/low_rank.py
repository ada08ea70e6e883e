"""`low_rank`: what an adapter adds to a product, in the rows that it has a part in (LoRA, Hu et al. 2021)."""

from __future__ import annotations

import numpy as np

from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array, Sample
from graphml.ir.ops.elementwise import add, mul
from graphml.ir.ops.leaf import weight_leaf
from graphml.ir.ops.linear import mul_mat
from graphml.ir.ops.rules import ROWS, f32
from graphml.passes.fusion import Fusion
from graphml.passes.rewrite import Match, Refusal


def _decompose(g: Builder, total: Node, x: Node, a: Node, factors: Node, b: Node) -> Node:
    """Total [T, N], x [T, K], a [r, K], factors [T, 1], b [N, r] -> total + factors * (b @ a @ x), [T, N]."""
    return g.add(total, g.mul_mat(b, g.mul(g.mul_mat(a, x), factors)))


def _some(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Factors of rows, of which the last has none."""
    values = generator.standard_normal(shape).astype(np.float32)
    values[1:][-1:] = 0.0
    return values


def _samples() -> list[Sample]:
    sizes = ((33, 64, 4), (64, 96, 16), (70, 7, 19))
    return [
        Sample((f32(ROWS, n), f32(ROWS, k), f32(r, k), f32(ROWS, 1), f32(n, r)), fill={3: _some})
        for n, k, r in sizes
    ]


# A row of the total is read just before it is written; rows with a factor of 0 may be left out.
low_rank = fused_op("low_rank", _decompose, _samples, inplace=(0,))


def _fits(match: Match) -> Refusal | None:
    a, b, factors = (match.variables[name] for name in ("a", "b", "factors"))
    for weight in (a, b):
        if weight.op is not weight_leaf:
            return Refusal(f"{weight.name} is not a tensor of a file", weight)
    if len(match.root.shape) != 2 or factors.shape != (match.root.shape[0], 1):
        return Refusal(f"{factors.name} is not one factor a row", factors)
    total = match.variables["total"]
    return (
        None if total.shape == match.root.shape else Refusal(f"{total.name} is no sum of its own rows", total)
    )


FUSION = Fusion(
    "low_rank",
    find=lambda total, x, a, factors, b: add(total, mul_mat(b, mul(mul_mat(a, x), factors))),
    replace=low_rank,
    when=_fits,
    attributes=lambda match: {},
)
