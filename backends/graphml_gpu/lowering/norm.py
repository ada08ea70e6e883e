"""Norms over the last dimension, with the sum before them and the conversion after them where fused.

And Walsh-Hadamard transforms.
"""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.op import integer
from graphml_gpu.dispatch import (
    NOTHING,
    DeviceView,
    Dispatch,
    GpuLowering,
    NodeResult,
    all_of,
    along,
    number,
    rows,
    width,
)
from graphml_gpu.kernels.norms.norm import add_rms_norm, norm
from graphml_gpu.kernels.norms.row_norm import ADD_ROW_NORM, ROW_NORM
from graphml_gpu.kernels.norms.walsh_hadamard import walsh_hadamard
from graphml_gpu.lowering.groups import WIDEST, for_row, held, in_registers, on_grid, per_row

_CONVERTED = "q8_1"


def _f32(node: Node) -> str | None:
    return all_of(node, "f32")


def _refuses_converted(node: Node) -> str | None:
    """Of a norm that is converted; its operands are float32."""
    output_type, n = (node.type.parts or (node.type,))[-1].dtype.name, width(node.inputs[0])
    if output_type != _CONVERTED:
        return f"no kernel converts a norm to {output_type}"
    return f"rows of {n} do not fit in registers" if n > WIDEST else None


def _refuses_add_norm(node: Node) -> str | None:
    return _f32(node) and _refuses_converted(node)


def _lower(node: Node, context: DeviceView) -> list[Dispatch]:
    x, extra = node.inputs[0], node.inputs[1:]
    n, count, output_type = width(x), rows(x.shape[:-1]), node.dtype.name
    share = held(n, context) if output_type == "f32" else in_registers(n, context)
    constants = {
        "KIND": node.op.name.split("_")[0],
        "WEIGHT": len(extra) > 0,
        "BIAS": len(extra) > 1,
        **(share or for_row(n)),
    }
    weight, bias = (extra[i] if len(extra) > i else NOTHING for i in (0, 1))
    kernel, eps = ROW_NORM[output_type] if share else norm, number(node, "eps")
    return [
        on_grid(
            kernel, constants, along(count), x=x, weight=weight, bias=bias, out=node, rows=count, n=n, eps=eps
        )
    ]


def _lower_add_norm(node: Node, context: DeviceView) -> list[Dispatch]:
    x, y, weight = node.inputs
    n, count, output_type = width(x), rows(x.shape[:-1]), node.type.parts[1].dtype.name
    share = held(n, context) if output_type == "f32" else in_registers(n, context)
    kernel = ADD_ROW_NORM[output_type] if share else add_rms_norm
    return [
        on_grid(
            kernel, share or for_row(n), along(count), x=x, y=y, weight=weight, total=NodeResult(node, 0),
            out=NodeResult(node, 1), rows=count, n=n, eps=number(node, "eps"),
        )
    ]  # fmt: skip


def _lower_walsh_hadamard(node: Node, context: DeviceView) -> list[Dispatch]:
    x, block = node.inputs[0], integer(node.attributes, "block")
    count = rows((*x.shape[:-1], width(x) // block))
    constants = {"BITS": block.bit_length() - 1}
    return per_row(
        walsh_hadamard, count, block // 2, constants, x=x, out=node, blocks=count, factor=block**-0.5
    )


NORM = GpuLowering(
    ("rms_norm", "rms_norm_mul", "layer_norm", "layer_norm_mul", "l2_norm"), _lower, refuses=_f32
)
NORM_CONVERTED = GpuLowering(
    ("rms_norm_mul_quantize", "layer_norm_mul_quantize"), _lower, refuses=_refuses_converted
)
ADD_NORM = GpuLowering(("add_rms_norm",), _lower_add_norm, refuses=_refuses_add_norm)
WALSH_HADAMARD = GpuLowering(("walsh_hadamard",), _lower_walsh_hadamard, refuses=_f32)
