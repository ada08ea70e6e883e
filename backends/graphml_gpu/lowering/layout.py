"""Copies in another layout, of elements of 4 bytes."""

from __future__ import annotations

from functools import partial
from math import prod

from graphml.ir.node import Node
from graphml.ir.op import integer, integers
from graphml_gpu.dispatch import DeviceView, Dims, Dispatch, GpuLowering, Scalar, all_of, rows, width
from graphml_gpu.kernels.indexing.layout import columns, concat, permute, repeat
from graphml_gpu.lowering.groups import per_element


def _refuses(node: Node) -> str | None:
    return all_of(node, "f32", "i32")


def _refuses_permute(node: Node) -> str | None:
    return f"{node.name} has more than 4 dimensions" if len(node.shape) > 4 else _refuses(node)


def _lower_permute(node: Node, context: DeviceView) -> list[Dispatch]:
    x = node.inputs[0]
    missing = 4 - len(x.shape)  # dimensions of 1 in front
    axes = (*range(missing), *(axis + missing for axis in integers(node.attributes, "axes")))
    sizes = [rows((1,))] * missing + [rows((size,)) for size in x.shape]

    def stride(axis: int, dims: Dims) -> int:
        return prod(size(dims) for size in sizes[axis + 1 :])

    scalars: dict[str, Scalar] = {f"n{i}": sizes[axes[i]] for i in (1, 2, 3)}
    scalars |= {f"stride{i}": partial(stride, axis) for i, axis in enumerate(axes)}
    return per_element(permute, rows(x.shape), x=x, out=node, n=rows(x.shape), **scalars)


def _lower_concat(node: Node, context: DeviceView) -> list[Dispatch]:
    a, b = node.inputs
    count = rows(node.shape)
    return per_element(concat, count, a=a, b=b, out=node, n=count, n_a=width(a), n_b=width(b))


def _lower_columns(node: Node, context: DeviceView) -> list[Dispatch]:
    x = node.inputs[0]
    count, start = rows(node.shape), integer(node.attributes, "start")
    return per_element(
        columns, count, x=x, out=node, n=count, width=width(node), start=start, x_width=width(x)
    )


def _lower_repeat(node: Node, context: DeviceView) -> list[Dispatch]:
    x = node.inputs[0]
    count, times = rows(node.shape), integer(node.attributes, "n")
    return per_element(repeat, count, x=x, out=node, n=count, width=width(x), times=times)


PERMUTE = GpuLowering(("permute",), _lower_permute, refuses=_refuses_permute)
CONCAT = GpuLowering(("concat",), _lower_concat, refuses=_refuses)
COLUMNS = GpuLowering(("columns",), _lower_columns, refuses=_refuses)
REPEAT = GpuLowering(("repeat",), _lower_repeat, refuses=_refuses)
