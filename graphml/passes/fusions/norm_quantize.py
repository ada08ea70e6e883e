"""`rms_norm_mul_quantize`, `layer_norm_mul_quantize`: a norm, quantised in the same kernel."""

from __future__ import annotations

from graphml.errors import ShapeError
from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Sample
from graphml.ir.ops.linear import quantize
from graphml.ir.ops.rules import ROWS, f32
from graphml.passes.fusion import Fusion
from graphml.passes.fusions.layer_norm import layer_norm_mul
from graphml.passes.fusions.norm_mul import FAINT, one_row, rms_norm_mul


def _rms_norm(g: Builder, x: Node, weight: Node, eps: float, dtype: str) -> Node:
    return g.call(quantize, g.rms_norm(x, weight, eps), dtype=dtype)


def _layer_norm(g: Builder, x: Node, weight: Node, *extra: Node, eps: float, bias: bool, dtype: str) -> Node:
    if len(extra) != bias:
        raise ShapeError(f"wanted {int(bias)} operands after the weight; got {list(extra)}")
    return g.call(quantize, g.layer_norm(x, weight, extra[0] if bias else None, eps), dtype=dtype)


def _samples() -> list[Sample]:
    return [
        *(Sample((f32(ROWS, n), f32(n)), {"dtype": "q8_1"}) for n in (32, 64, 576)),
        Sample((f32(ROWS, 64), f32(64)), {"dtype": "q8_1"}, {0: FAINT}),
    ]


def _with_bias() -> list[Sample]:
    at: dict[str, Attribute] = {"dtype": "q8_1", "bias": True}
    return [*_samples(), *(Sample((f32(ROWS, n), f32(n), f32(n)), at) for n in (32, 576))]


rms_norm_mul_quantize = fused_op("rms_norm_mul_quantize", _rms_norm, _samples, {"eps": 1e-5, "dtype": None})
layer_norm_mul_quantize = fused_op(
    "layer_norm_mul_quantize", _layer_norm, _with_bias, {"eps": 1e-5, "bias": False, "dtype": None}
)

RMS_NORM = Fusion(
    "rms_norm_mul_quantize",
    find=lambda x, weight: quantize(rms_norm_mul(x, weight)),
    replace=rms_norm_mul_quantize,
    when=one_row,
)
LAYER_NORM = Fusion(
    "layer_norm_mul_quantize",
    find=(
        lambda x, weight: quantize(layer_norm_mul(x, weight)),
        lambda x, weight, bias: quantize(layer_norm_mul(x, weight, bias)),
    ),
    replace=layer_norm_mul_quantize,
    when=one_row,
)
