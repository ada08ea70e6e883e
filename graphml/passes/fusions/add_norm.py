"""`add_rms_norm`: a residual sum and its norm; two results, the sum and the normalised sum."""

from __future__ import annotations

from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Fill, Op, Sample, Term
from graphml.ir.ops.elementwise import add
from graphml.ir.ops.linear import quantize
from graphml.ir.ops.rules import ROWS, f32
from graphml.passes.fusion import Fusion
from graphml.passes.fusions.norm_mul import FAINT, rms_norm_mul
from graphml.passes.fusions.norm_quantize import rms_norm_mul_quantize
from graphml.passes.rewrite import Match, Refusal


def _decompose(g: Builder, x: Node, y: Node, weight: Node, eps: float, dtype: str) -> tuple[Node, Node]:
    """X and y [..., N], weight [N] -> x + y, and its root-mean-square norm times the weight, in `dtype`."""
    total = g.add(x, y)
    normed = g.rms_norm(total, weight, eps)
    return total, normed if dtype == "f32" else g.call(quantize, normed, dtype=dtype)


def _samples() -> list[Sample]:
    plain = [Sample((f32(ROWS, n), f32(ROWS, n), f32(n))) for n in (7, 576)]
    plain.append(Sample((f32(ROWS, 64), f32(ROWS, 64), f32(64)), fill={0: FAINT, 1: FAINT}))
    packed = (f32(ROWS, 96), f32(ROWS, 96), f32(96))
    fills: tuple[dict[int, Fill], ...] = ({}, {0: FAINT, 1: FAINT})
    return [*plain, *(Sample(packed, {"dtype": "q8_1"}, fill) for fill in fills)]


add_rms_norm = fused_op("add_rms_norm", _decompose, _samples, {"eps": 1e-5, "dtype": "f32"})


def _of_a_sum(norm: Op, x: str, y: str, weight: str) -> tuple[Term, Term]:
    total = add(x, y)
    return total, norm(total, weight)


def _same_shape(match: Match) -> Refusal | None:
    x, y = match.variables["x"], match.variables["y"]
    return None if x.shape == y.shape else Refusal(f"{y.name} has another shape than {x.name}", y)


FUSION = Fusion(
    "add_rms_norm",
    find=(
        lambda x, y, weight: _of_a_sum(rms_norm_mul, x, y, weight),
        lambda x, y, weight: _of_a_sum(rms_norm_mul_quantize, x, y, weight),
    ),
    replace=add_rms_norm,
    when=_same_shape,
    last=True,
)
