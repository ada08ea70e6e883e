"""Products of two computed values for each token, or for each of other leading dimensions."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import bounds
from graphml_gpu.dispatch import DeviceView, Dispatch, GpuLowering, all_of, along, rows
from graphml_gpu.kernels.products.mul_mat_batch import SIDE, mul_mat_batch
from graphml_gpu.lowering.groups import on_grid


def _lower(node: Node, context: DeviceView) -> list[Dispatch]:
    weight, x = node.inputs
    (n, k), m = bounds(weight.shape[-2:]), bounds(x.shape)[-2]
    batches = rows(x.shape[:-2])
    grid = along(batches * (-(-n // SIDE) * -(-m // SIDE)))
    return [on_grid(mul_mat_batch, {}, grid, w=weight, x=x, y=node, batches=batches, n=n, m=m, k=k)]


MUL_MAT_BATCH = GpuLowering(("mul_mat_batch",), _lower, refuses=lambda node: all_of(node, "f32"))
