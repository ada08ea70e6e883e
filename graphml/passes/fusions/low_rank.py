"""`low_rank`: what adapters add to a product, in the rows that they have a part in (LoRA, Hu et al. 2021)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import chain
from typing import Final

import numpy as np

from graphml.errors import ShapeError
from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array, Pattern, Sample, Term
from graphml.ir.ops.elementwise import add, mul
from graphml.ir.ops.leaf import weight_leaf
from graphml.ir.ops.linear import mul_mat
from graphml.ir.ops.rules import ROWS, f32
from graphml.passes.fusion import Fusion
from graphml.passes.rewrite import Match, Refusal

MOST_JOINED: Final = 16
"""Adapters of one node: as many as the requests of an engine may have at a time."""


def _decompose(g: Builder, total: Node, x: Node, *pairs: Node) -> Node:
    """Total [T, N], x [T, K], a [r, K], factors [T, 1], b [N, r] -> total + factors * (b @ a @ x), [T, N].

    Any number of a, factors, b, whose parts are added in turn; the ranks may differ.
    """
    if not pairs or len(pairs) % 3:
        raise ShapeError(f"wanted a, factors, b of each adapter; got {list(pairs)}")
    for a, factors, b in zip(pairs[0::3], pairs[1::3], pairs[2::3], strict=True):
        total = g.add(total, g.mul_mat(b, g.mul(g.mul_mat(a, x), factors)))
    return total


def _some(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Factors of rows, of which the last has none."""
    values = generator.standard_normal(shape).astype(np.float32)
    values[1:][-1:] = 0.0
    return values


def _samples() -> list[Sample]:
    sizes = ((33, 64, 4), (64, 96, 16), (70, 7, 19))
    alone = [
        Sample((f32(ROWS, n), f32(ROWS, k), f32(r, k), f32(ROWS, 1), f32(n, r)), fill={3: _some})
        for n, k, r in sizes
    ]
    first, second = ((f32(r, 40), f32(ROWS, 1), f32(33, r)) for r in (5, 16))
    several = [[(first, second)[i % 2] for i in range(count)] for count in range(2, MOST_JOINED + 1)]
    return [
        *alone,
        *(Sample((f32(ROWS, 33), f32(ROWS, 40), *chain(*triples)), fill={3: _some}) for triples in several),
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
    total, product = match.variables["total"], match.covered[1]
    same = total.shape == product.shape == match.root.shape  # either may be stretched to the other
    return None if same else Refusal(f"{total.name} is no sum of its own rows", total)


FUSION = Fusion(
    "low_rank",
    find=lambda total, x, a, factors, b: add(total, mul_mat(b, mul(mul_mat(a, x), factors))),
    replace=low_rank,
    when=_fits,
    attributes=lambda match: {},
)


def _in_turn(count: int) -> Callable[..., Pattern]:
    """The pattern of so many adapters of one product, each added to the sum before it."""
    triples = [(f"a_{i}", f"factors_{i}", f"b_{i}") for i in range(count)]
    names = ["total", "x", *(name for triple in triples for name in triple)]

    def find(*operands: str) -> Pattern:
        total: Term | str = "total"
        for triple in triples:
            total = low_rank(total, "x", *triple)
        assert isinstance(total, Term)
        return total

    kind = inspect.Parameter.POSITIONAL_ONLY
    find.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return find


JOINED = Fusion(
    "low_rank_joined",
    find=tuple(_in_turn(count) for count in range(2, MOST_JOINED + 1)),
    replace=low_rank,
    attributes=lambda match: {},
)
