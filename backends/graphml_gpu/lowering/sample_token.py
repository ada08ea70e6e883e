"""Sampling tokens."""

from __future__ import annotations

from graphml.ir.node import Node
from graphml.ir.shape import max_elements
from graphml_gpu.dispatch import (
    Argument,
    DeviceView,
    Dims,
    Dispatch,
    GpuLowering,
    GpuWorkspace,
    Groups,
    Scalar,
    all_of,
    along,
    rows,
    width,
)
from graphml_gpu.kernels.sampling.sample_token import row_sums, sample_row, sample_token
from graphml_gpu.lowering.groups import for_row, on_grid

_BLOCK = 4096
"""Elements of a row that a workgroup takes, where rows are long; a multiple in the longest."""
_GROUP = 32


def _group(node: Node) -> int:
    return int(for_row(min(width(node.inputs[0]), _BLOCK))["GROUP"])


def _size(node: Node) -> int:
    """Elements of a block: one invocation of the workgroup that samples takes a block at most."""
    return _BLOCK * -(-width(node.inputs[0]) // (_BLOCK * _group(node)))


def _blocks(node: Node) -> int:
    return -(-width(node.inputs[0]) // _size(node))


def _lower_of_row(node: Node, context: DeviceView) -> list[Dispatch]:
    row, top_logits, settings = node.inputs
    count, blocks, group = rows(row.shape[:1]), _blocks(node), _group(node)
    sizes = {"SIZE": _size(node), "GROUP": group}
    buffers: dict[str, Argument] = {
        "row": row, "top_logits": top_logits, "settings": settings, "sums": GpuWorkspace(node)
    }  # fmt: skip
    scalars: dict[str, Scalar] = {"n": width(row), "k": width(top_logits)}
    more: dict[str, Scalar] = {"rows": count, "blocks": blocks, "width": group}

    def grid(dims: Dims) -> Groups:
        return blocks, count(dims), 1

    return [
        Dispatch(row_sums, sizes, buffers, scalars, grid),
        Dispatch(sample_row, sizes, buffers | {"out": node}, scalars | more, along(count)),
    ]


def _lower(node: Node, context: DeviceView) -> list[Dispatch]:
    ids, top_logits, of_row, settings = node.inputs
    count = rows(node.shape)
    return [
        on_grid(
            sample_token, {"GROUP": _GROUP}, along(count, _GROUP), ids=ids, top_logits=top_logits,
            of_row=of_row, settings=settings, out=node, rows=count, k=width(ids),
        )
    ]  # fmt: skip


SAMPLE_ROW = GpuLowering(
    ("sample_row",),
    _lower_of_row,
    refuses=lambda node: all_of(node, "f32"),
    workspace=lambda node: max_elements(node.shape[:1]) * _blocks(node) * 8,
)
SAMPLE_TOKEN = GpuLowering(("sample_token",), _lower, refuses=lambda node: all_of(node, "f32", "i32"))
