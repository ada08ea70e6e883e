"""`linears`: products of one value with several tensors of the file: queries, keys and values, say."""

from __future__ import annotations

from graphml.errors import ShapeError
from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Sample, Several
from graphml.ir.ops.rules import ROWS, f32
from graphml.passes.fusion import Fusion
from graphml.passes.fusions.linear import linear


def _decompose(g: Builder, x: Node, *operands: Node, bias: bool) -> tuple[Node, ...]:
    """X [..., K] of any dtype, weights [N, K] (N may differ), as many biases [N] -> [..., N] for each."""
    count = len(operands) // 2 if bias else len(operands)
    if not count or (bias and len(operands) % 2):
        raise ShapeError(f"wanted weights{' and as many biases' if bias else ''}; got {list(operands)}")
    x = g.dequantize(x)
    products = [g.mul_mat(weight, x) for weight in operands[:count]]
    return (
        tuple(g.add(*pair) for pair in zip(products, operands[count:], strict=True)) if bias else (*products,)
    )


def _samples() -> list[Sample]:
    x, q, k = f32(ROWS, 64), f32(70, 64), f32(33, 64)
    return [Sample((x, q, k, k)), Sample((x, q, k, f32(70), f32(33)), {"bias": True})]


linears = fused_op("linears", _decompose, _samples, {"bias": False})

QKV = Fusion(
    "qkv",
    find=(
        lambda x, weight: Several(linear(weight, x), sharing=x),
        lambda x, weight, bias: Several(linear(weight, x, bias).having(residual=False), sharing=x),
    ),
    replace=linears,
    attributes=lambda match: {"bias": "bias" in match.repeated},
    last=True,
)
