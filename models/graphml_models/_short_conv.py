"""Values of tokens before: shifts along each text, and short causal convolutions of each channel.

T tokens, C channels, K tokens of a convolution.
"""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed, max_elements
from graphml.loading.architecture import Tensors


def shifted(g: Builder, x: Node, by: int, index: int, what: str) -> Node:
    """X [T, ...] of the token `by` before, zeros before a text's first; index and what name the state."""
    flat_TC = g.flatten(x) if len(x.shape) > 2 else x
    width = fixed(flat_TC.shape[1])
    taps_11K = g.reshape(g.constant([1.0] + [0.0] * by), 1, by + 1, keep=0)
    taps_1CK = g.repeat(g.reshape(taps_11K, 1, 1, by + 1, keep=0), width)
    y_TC = g.ssm_conv(flat_TC, g.reshape(taps_1CK, width, by + 1, keep=0), None, index, what)
    return y_TC if len(x.shape) == 2 else g.reshape(y_TC, *map(fixed, x.shape[1:]))


def short_conv(
    g: Builder, tensors: Tensors, name: str, x_TC: Node, index: int, what: str, apart: int = 1
) -> Node:
    """The convolution by `name` [C, 1, K] and its `.bias`, [T, C]; apart: tokens from one to the next."""
    width = fixed(x_TC.shape[1])
    weight = g.dequantize(tensors[name])
    count = max_elements(weight.shape) // width
    weight_CK = g.reshape(weight, width, count, keep=0)
    if apart > 1:
        weight_CK = _spaced(g, weight_CK, apart)
    return g.ssm_conv(x_TC, weight_CK, tensors.get(f"{name}.bias"), index, what)


def _spaced(g: Builder, weight_CK: Node, apart: int) -> Node:
    """With zeros between, [C, (K - 1) * apart + 1]."""
    width, count = map(fixed, weight_CK.shape)
    parts_CKS = weight_CK1 = g.reshape(weight_CK, width, count, 1, keep=0)
    for _ in range(apart - 1):
        parts_CKS = g.concat(parts_CKS, g.scale(weight_CK1, 0.0))
    flat = g.reshape(parts_CKS, width, count * apart, keep=0)
    return g.columns(flat, 0, (count - 1) * apart + 1)


def remainder(g: Builder, x: Node, of: int) -> Node:
    """The remainder of whole numbers of at most 2^24 - `of`, from 0 to `of` - 1: exact."""
    left = g.sub(x, g.scale(g.floor(g.scale(x, 1.0 / of)), float(of)))  # the quotient may be off by one
    left = g.where(g.less(left, g.constant(0.0)), g.scale(left, 1.0, float(of)), left)
    return g.where(g.less(left, g.constant(float(of))), left, g.scale(left, 1.0, -float(of)))
