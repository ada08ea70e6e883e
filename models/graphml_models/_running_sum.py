"""Sums over the tokens of each text so far, and constants as values of tokens.

T tokens, N heads, W width.
"""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed


def running_sum(g: Builder, x: Node, index: int) -> Node:
    """The sum of X [T, ...] over each token and those before it in its text; index: of the state."""
    flat_TW = g.flatten(x) if len(x.shape) > 2 else x
    one_T11 = constant_rows(g, [[1.0]])
    y_T1W = g.linear_attention(one_T11, one_T11, g.heads(flat_TW, 1), index)
    return g.reshape(y_T1W, *map(fixed, x.shape[1:]))


def decayed_sum(g: Builder, x_TW: Node, decay_TW: Node, index: int) -> Node:
    """X, and the sum before it times the token's decay, of each element [T, W]; index: of the state."""
    width = fixed(x_TW.shape[1])
    x_TW1, decay_TW1 = g.heads(x_TW, width), g.heads(decay_TW, width)
    ones_TW1 = g.scale(decay_TW1, 0.0, 1.0)
    return g.flatten(g.linear_attention(ones_TW1, ones_TW1, x_TW1, index, (decay_TW1,)))


def constant_rows(g: Builder, rows: list[list[float]]) -> Node:
    """Numbers [N, W] as a value of each token, [T, N, W]."""
    zero_T1 = g.scale(g.reshape(g.cast(g.positions, "f32"), 1), 0.0)
    n, width = len(rows), len(rows[0])
    zeros = g.reshape(g.repeat(g.reshape(zero_T1, 1, 1), n * width), n, width)
    return g.add(zeros, g.constant(rows))
