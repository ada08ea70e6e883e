"""`ssm_conv_silu`: the convolution of a recurrent layer, its bias if it has one, and SiLU."""

from __future__ import annotations

from graphml.errors import ShapeError
from graphml.ir.fused import fused_op
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Sample
from graphml.ir.ops.elementwise import silu
from graphml.ir.ops.recurrent import ssm_conv
from graphml.passes.fusion import Fusion


def _decompose(
    g: Builder, state: Node, x: Node, weight: Node, sequences: Node, positions: Node, *extra: Node, bias: bool
) -> Node:
    if len(extra) != bias:
        raise ShapeError(f"wanted {int(bias)} operands after the positions; got {list(extra)}")
    return g.silu(g.call(ssm_conv, state, x, weight, sequences, positions, *extra))


def _samples() -> list[Sample]:
    return [
        Sample(sample.inputs, {"bias": len(sample.inputs) > 5}, sample.fill) for sample in ssm_conv.samples()
    ]


ssm_conv_silu = fused_op(
    "ssm_conv_silu", _decompose, _samples, {"bias": False}, inplace=(1,), writes=0, recurrent=True
)
PLAIN = Fusion(
    "conv_silu",
    find=lambda state, x, weight, sequences, positions: silu(
        ssm_conv(state, x, weight, sequences, positions)
    ),
    replace=ssm_conv_silu,
    attributes=lambda match: {"bias": False},
)
BIAS = Fusion(
    "conv_bias_silu",
    find=lambda state, x, weight, sequences, positions, bias: silu(
        ssm_conv(state, x, weight, sequences, positions, bias)
    ),
    replace=ssm_conv_silu,
    attributes=lambda match: {"bias": True},
)
