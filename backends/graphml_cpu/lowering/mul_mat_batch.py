"""Products of two computed values for each token, or for each of other leading dimensions."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import bounds
from graphml_cpu.compiler import KernelRef
from graphml_cpu.lowering.linear import Loops
from graphml_cpu.lowering.step import Argument, CpuLowering, KernelCall, Scratch, leading, rows

_MODULE = "graphml_cpu.kernels.products.mul_mat_batch"
_FEW = Loops("f32", one_row=True).calls[:1]
_BATCH = KernelRef("mul_mat_batch", _MODULE, "make_mul_mat_batch", (), _FEW)
_OUTER = KernelRef("outer", _MODULE, "make_outer")


def _lower(node: Node, threads: int) -> list[KernelCall]:
    weight, x = node.inputs
    (n, k), m = bounds(weight.shape[-2:]), bounds(x.shape)[-2]
    arguments: dict[str, Argument] = {"w": weight, "x": x, "y": node, "n": n, "m": m}
    if k == 1:
        return [KernelCall(_OUTER, {**arguments, "rows": leading(x)}, writes=("y",))]
    arguments |= {"k": k, "scratch": Scratch(64), "batches": rows(x.shape[:-2])}
    return [KernelCall(_BATCH, arguments, writes=("y",))]


MUL_MAT_BATCH = CpuLowering(("mul_mat_batch",), _lower)
