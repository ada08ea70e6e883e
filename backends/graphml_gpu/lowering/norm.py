"""Norms over the last dimension, with the sum before it where they are made together."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml_gpu.dispatch import (
    NOTHING,
    Context,
    Dispatch,
    Lowering,
    Part,
    all_of,
    along,
    number,
    rows,
    width,
)
from graphml_gpu.kernels.norms.norm import add_rms_norm, norm
from graphml_gpu.kernels.norms.row_norm import add_row_norm, row_norm
from graphml_gpu.lowering.groups import for_row, in_registers


def _f32(node: Node) -> str | None:
    return all_of(node, "f32")


def _lower(node: Node, context: Context) -> list[Dispatch]:
    x, extra = node.inputs[0], node.inputs[1:]
    count = rows(x.shape[:-1])
    held = in_registers(width(x), context)
    constants = {
        "KIND": node.op.name.split("_")[0].removesuffix("_norm"),
        "WEIGHT": len(extra) > 0,
        "BIAS": len(extra) > 1,
        **(held or for_row(width(x))),
    }
    weight, bias = (extra[i] if len(extra) > i else NOTHING for i in (0, 1))
    return [
        Dispatch(
            row_norm if held else norm,
            constants,
            {"x": x, "weight": weight, "bias": bias, "out": node},
            {"rows": count, "n": width(x), "eps": number(node, "eps")},
            along(count),
        )
    ]


def _lower_add_norm(node: Node, context: Context) -> list[Dispatch]:
    x, y, weight = node.inputs
    count = rows(x.shape[:-1])
    held = in_registers(width(x), context)
    return [
        Dispatch(
            add_row_norm if held else add_rms_norm,
            held or for_row(width(x)),
            {"x": x, "y": y, "weight": weight, "total": Part(node, 0), "out": Part(node, 1)},
            {"rows": count, "n": width(x), "eps": number(node, "eps")},
            along(count),
        )
    ]


NORM = Lowering(("rms_norm", "rms_norm_mul", "layer_norm", "layer_norm_mul", "l2_norm"), _lower, refuses=_f32)
ADD_NORM = Lowering(("add_rms_norm",), _lower_add_norm, refuses=_f32)
