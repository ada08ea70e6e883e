"""Norms and gates whose result goes at once into the packed rows that meet such weights."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml_cpu.compiler import KernelRef
from graphml_cpu.lowering.linear import refuses_packing
from graphml_cpu.lowering.step import CpuLowering, KernelCall, leading, number, one_step, row_bytes, width

_MODULE = "graphml_cpu.kernels.products.quantize_fused"


def _lower_norm(node: Node, threads: int) -> list[KernelCall]:
    x, weight = node.inputs
    layout = node.dtype.name
    ref = KernelRef(f"rms_norm_quantize-{layout}", _MODULE, "make_rms_norm_quantize", (layout,))
    return one_step(
        ref, x=x, weight=weight, out=node, n=width(x), eps=number(node, "eps"), x_stride=row_bytes(x),
        rows=leading(x),
    )  # fmt: skip


def _lower_glu(node: Node, threads: int) -> list[KernelCall]:
    gate, up = node.inputs
    op = node.op.name.removesuffix("_quantize")
    layout = node.dtype.name
    ref = KernelRef(f"glu_quantize-{op}-{layout}", _MODULE, "make_glu_quantize", (op, layout))
    return one_step(
        ref, gate=gate, up=up, out=node, n=width(gate), gate_stride=row_bytes(gate), up_stride=row_bytes(up),
        rows=leading(gate),
    )  # fmt: skip


NORM = CpuLowering(("rms_norm_mul_quantize",), _lower_norm, refuses=refuses_packing, replicable=True)
GLU = CpuLowering(("swiglu_quantize", "geglu_quantize"), _lower_glu, refuses=refuses_packing, replicable=True)
