"""Softmax, sums, extremes and running sums over the last dimension; means over rows."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml_gpu.dispatch import DeviceView, Dispatch, GpuLowering, all_of, rows, width
from graphml_gpu.kernels.reductions.reduce import cumsum, extreme_rows, mean_rows, softmax, sum_rows
from graphml_gpu.language import Kernel
from graphml_gpu.lowering.groups import per_element, per_row

_KERNELS: dict[str, tuple[Kernel, dict[str, float]]] = {
    "softmax": (softmax, {}),
    "sum_rows": (sum_rows, {}),
    "max_rows": (extreme_rows, {"SIGN": 1.0}),
    "min_rows": (extreme_rows, {"SIGN": -1.0}),
    "cumsum": (cumsum, {}),
}


def _lower(node: Node, context: DeviceView) -> list[Dispatch]:
    x = node.inputs[0]
    kernel, constants = _KERNELS[node.op.name]
    count, n = rows(x.shape[:-1]), width(x)
    return per_row(kernel, count, n, constants, node.op.name, x=x, out=node, rows=count, n=n)


REDUCE = GpuLowering(tuple(_KERNELS), _lower, refuses=lambda node: all_of(node, "f32"))


def _lower_mean_rows(node: Node, context: DeviceView) -> list[Dispatch]:
    x, numbers, sequences, _ = node.inputs
    count = rows(node.shape)
    return per_element(
        mean_rows, count, x=x, numbers=numbers, sequences=sequences, out=node, count=count,
        rows=rows(x.shape[:1]), n=width(x), tokens=rows(sequences.shape),
    )  # fmt: skip


MEAN_ROWS = GpuLowering(("mean_rows",), _lower_mean_rows, refuses=lambda node: all_of(node, "f32", "i32"))
