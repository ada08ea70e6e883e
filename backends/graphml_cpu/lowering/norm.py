"""Norms over the last dimension, with the sum before it where they are made together; Hadamard transforms."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.op import integer
from graphml_cpu.compiler import KernelRef
from graphml_cpu.lowering.linear import is_packed
from graphml_cpu.lowering.step import (
    Argument,
    CpuLowering,
    KernelCall,
    NodeResult,
    leading,
    number,
    one_step,
    row_bytes,
    rows,
    width,
)

_MODULE = "graphml_cpu.kernels.norms.norm"
_KERNELS = {
    "rms_norm": KernelRef("rms_norm", _MODULE, "make_rms_norm"),
    "layer_norm": KernelRef("layer_norm", _MODULE, "make_layer_norm"),
    "l2_norm": KernelRef("l2_norm", _MODULE, "make_l2_norm"),
}
_ADD_NORM = "graphml_cpu.kernels.norms.add_norm"


def _lower(node: Node, threads: int) -> list[KernelCall]:
    name = node.op.name.removesuffix("_mul")
    x = node.inputs[0]
    arguments: dict[str, Argument] = {
        "x": x,
        "out": node,
        "n": width(x),
        "eps": number(node, "eps"),
        "x_stride": row_bytes(x),
        "out_stride": row_bytes(node),
        "rows": leading(x),
    }
    if name != "l2_norm":
        weight, bias = (node.inputs[i] if len(node.inputs) > i else 0 for i in (1, 2))
        arguments |= {"weight": weight, "bias": bias}
    return [KernelCall(_KERNELS[name], arguments)]


def _refuses_add_norm(node: Node) -> str | None:
    normed = node.type.parts[1].dtype
    if normed.is_format and not is_packed(normed):
        return f"no kernel converts to {normed.name}"
    return None


def _lower_add_norm(node: Node, threads: int) -> list[KernelCall]:
    x, y, weight = node.inputs
    normed = node.type.parts[1].dtype
    if is_packed(normed):
        name = f"add_rms_norm_quantize-{normed.name}"
        ref = KernelRef(name, _ADD_NORM, "make_add_rms_norm_quantize", (normed.name,))
    else:
        ref = KernelRef("add_rms_norm", _ADD_NORM, "make_add_rms_norm")
    return one_step(
        ref, ("total", "out"), x=x, y=y, weight=weight, total=NodeResult(node, 0), out=NodeResult(node, 1),
        n=width(x), eps=number(node, "eps"), rows=leading(x),
    )  # fmt: skip


def _lower_walsh_hadamard(node: Node, threads: int) -> list[KernelCall]:
    x, block = node.inputs[0], integer(node.attributes, "block")
    ref = KernelRef(
        f"walsh_hadamard-{block}", "graphml_cpu.kernels.norms.walsh_hadamard", "make_walsh_hadamard", (block,)
    )
    blocks = rows((*x.shape[:-1], width(x) // block))
    return one_step(ref, x=x, out=node, factor=block**-0.5, blocks=blocks)


ADD_NORM = CpuLowering(("add_rms_norm",), _lower_add_norm, refuses=_refuses_add_norm, replicable=True)
NORM = CpuLowering(
    ("rms_norm", "rms_norm_mul", "layer_norm", "layer_norm_mul", "l2_norm"),
    _lower,
    replicable=True,
)
WALSH_HADAMARD = CpuLowering(("walsh_hadamard",), _lower_walsh_hadamard, replicable=True)
