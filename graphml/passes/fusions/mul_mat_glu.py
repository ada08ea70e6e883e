"""`mul_mat_glu`: a gated activation and its two products: x is read once and half is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphml.errors import ShapeError
from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Attribute, Op, Sample, Term
from graphml.ir.ops.linear import quantize
from graphml.ir.ops.rules import ROWS, f32
from graphml.passes.fusion import Fusion
from graphml.passes.fusions.glu import geglu, geglu_erf, geglu_quick, reglu
from graphml.passes.fusions.glu_quantize import geglu_quantize, swiglu_quantize
from graphml.passes.fusions.linear import linear
from graphml.passes.fusions.swiglu import swiglu
from graphml.passes.rewrite import Match

GLUS = {op.name: op for op in (swiglu, geglu, geglu_erf, geglu_quick, reglu)}


def _decompose(
    g: Builder, gate: Node, up: Node, x: Node, *biases: Node, glu: str, bias: bool, dtype: str
) -> Node:
    """Gate and up [N, K], x [..., K] of any dtype, biases [N] of both -> [..., N], converted to `dtype`."""
    if len(biases) != 2 * bias or glu not in GLUS:
        raise ShapeError(
            f"wanted {2 * bias} biases and a gate of {sorted(GLUS)}; got {list(biases)}, {glu!r}"
        )
    x = g.dequantize(x)
    products = [g.mul_mat(weight, x) for weight in (gate, up)]
    if bias:
        products = [g.add(*pair) for pair in zip(products, biases, strict=True)]
    decompose = GLUS[glu].decompose
    assert decompose is not None
    y = decompose(g, *products)
    assert isinstance(y, Node)
    return y if dtype == "f32" else g.call(quantize, y, dtype=dtype)


def _samples() -> list[Sample]:
    w, x, b = f32(64, 64), f32(ROWS, 64), f32(64)
    odd = Sample((f32(33, 64), f32(33, 64), x, f32(33), f32(33)), {"glu": "swiglu", "bias": True})
    plain = [Sample((w, w, x), {"glu": name}) for name in GLUS]
    both: list[Mapping[str, Attribute]] = [{"bias": True}, {"bias": False}]
    return [odd, *plain, *(
        Sample((w, w, x, *(b, b) * bool(at["bias"])), {"glu": name, "dtype": "q8_1", **at})
        for at in both for name in ("swiglu", "geglu")
    )]  # fmt: skip


mul_mat_glu = fused_op("mul_mat_glu", _decompose, _samples, {"glu": None, "bias": False, "dtype": "f32"})


def _fusion(glu: Op, converted: Callable[..., Term]) -> Fusion:
    """The fusion of one kind of gate; converted: the term of its quantised result."""

    def attributes(match: Match) -> dict[str, Attribute]:
        bias = "gate_bias" in match.variables
        return {"glu": glu.name, "bias": bias, "dtype": match.root.attributes.get("dtype", "f32")}

    def product(weight: str, x: str) -> Term:
        return linear(weight, x)

    def biased(weight: str, x: str, bias: str) -> Term:
        return linear(weight, x, bias).having(residual=False)

    return Fusion(
        f"mul_mat_{glu.name}",
        find=(
            lambda gate, up, x: glu(product(gate, x), product(up, x)),
            lambda gate, up, x: converted(product(gate, x), product(up, x)),
            lambda gate, up, x, gate_bias, up_bias: glu(biased(gate, x, gate_bias), biased(up, x, up_bias)),
            lambda gate, up, x, gate_bias, up_bias: converted(
                biased(gate, x, gate_bias), biased(up, x, up_bias)
            ),
        ),
        replace=mul_mat_glu,
        attributes=attributes,
        last=True,
    )


SWIGLU = _fusion(swiglu, swiglu_quantize)
GEGLU = _fusion(geglu, geglu_quantize)
GEGLU_ERF = _fusion(geglu_erf, lambda *products: quantize(geglu_erf(*products)))
GEGLU_QUICK = _fusion(geglu_quick, lambda *products: quantize(geglu_quick(*products)))
REGLU = _fusion(reglu, lambda *products: quantize(reglu(*products)))
