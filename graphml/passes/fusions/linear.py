"""`linear`: a product with a weight as the file stores it, and the bias and residual added to it."""

from __future__ import annotations

from graphml.errors import ShapeError
from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Sample
from graphml.ir.ops.elementwise import add
from graphml.ir.ops.leaf import weight_leaf
from graphml.ir.ops.linear import dequantize, mul_mat
from graphml.ir.ops.rules import ROWS, f32, sized
from graphml.passes.fusion import Fusion
from graphml.passes.rewrite import Match, Refusal


def _decompose(g: Builder, weight: Node, x: Node, *extra: Node, bias: bool, residual: bool) -> Node:
    """Weight [N, K] and x [..., K], both of any dtype; extra: the bias [N], the residual [..., N]."""
    if len(extra) != bias + residual:
        raise ShapeError(f"wanted {bias + residual} operands after x; got {list(extra)}")
    y = g.mul_mat(weight, g.dequantize(x))
    if bias:
        y = g.add(y, extra[0])
    return g.add(extra[-1], y) if residual else y


def _samples() -> list[Sample]:
    w, x, b, r = f32(33, 64), f32(ROWS, 64), f32(33), f32(ROWS, 33)
    return [
        Sample((w, x)),
        Sample((w, x, b), {"bias": True}),
        Sample((w, x, r), {"residual": True}),
        Sample((w, x, b, r), {"bias": True, "residual": True}),
        # The scales of converted activations are no halves.
        Sample((w, x), fill={1: sized(1e9)}),
        Sample((w, x), fill={1: sized(1e-9)}),
    ]


# The residual is read just before the same element is written.
linear = fused_op("linear", _decompose, _samples, {"bias": False, "residual": False}, inplace=(2, 3))


def weight_is_a_tensor(match: Match) -> Refusal | None:
    """Refuse a product with a computed value."""
    weight = match.variables["weight"]
    return None if weight.op is weight_leaf else Refusal(f"{weight.name} is not a tensor of the file", weight)


def _bias_fits(match: Match) -> Refusal | None:
    bias, product = match.variables["bias"], match.covered[-1]
    if product.attributes["residual"] or product.attributes["bias"]:
        return Refusal("a bias or residual is added already", product)
    if bias.op is weight_leaf and bias.shape == match.root.shape[-1:]:
        return None
    return Refusal(f"{bias.name} is not one row of weights", bias)


def _residual_fits(match: Match) -> Refusal | None:
    residual, product = match.variables["residual"], match.covered[-1]
    if product.attributes["residual"]:
        return Refusal("a residual is added already", product)
    same = residual.shape == product.shape == match.root.shape  # either may be stretched to the other
    return None if same else Refusal(f"{residual.name} has another shape than {product.name}", residual)


def _has_bias(match: Match) -> Refusal | None:
    product = match.covered[-1]
    return None if product.attributes["bias"] else Refusal("the product's third operand is no bias", product)


WEIGHT = Fusion(
    "dequant_mul_mat",
    find=(lambda weight, x: mul_mat(dequantize(weight), x), lambda weight, x: mul_mat(weight, x)),
    replace=linear,
    when=weight_is_a_tensor,
    attributes=lambda match: {},
)
BIAS = Fusion(
    "mul_mat_bias",
    find=lambda weight, x, bias: add(linear(weight, x), bias),
    replace=linear,
    when=_bias_fits,
    attributes=lambda match: {"bias": True},
)
RESIDUAL = Fusion(
    "mul_mat_residual",
    find=lambda weight, x, residual: add(residual, linear(weight, x)),
    replace=linear,
    when=_residual_fits,
    attributes=lambda match: {"residual": True},
)
BIAS_RESIDUAL = Fusion(
    "mul_mat_bias_residual",
    find=lambda weight, x, bias, residual: add(residual, linear(weight, x, bias)),
    replace=linear,
    when=lambda match: _residual_fits(match) or _has_bias(match),
    attributes=lambda match: {"bias": True, "residual": True},
)
