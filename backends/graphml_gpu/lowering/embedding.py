"""Rows of a table by index, whatever its format: embeddings."""

from __future__ import annotations

from math import prod

from graphml.ir.node import Node
from graphml.ir.ops.leaf import weight_leaf
from graphml.ir.shape import bounds
from graphml_gpu.dispatch import DeviceView, Dispatch, GpuLowering, along, rows
from graphml_gpu.kernels import formats
from graphml_gpu.kernels.indexing.get_rows import get_rows
from graphml_gpu.lowering.groups import on_grid
from graphml_gpu.lowering.products import readable, slabs, table_of

_UNITS_PER_GROUP = 64


def _refuses(node: Node) -> str | None:
    return readable(node.inputs[0])


def _lower(node: Node, context: DeviceView) -> list[Dispatch]:
    """A dispatch for each buffer of the table: it leaves the rows of the others alone."""
    source, indices = node.inputs
    # A row of several dimensions is one row of as many elements: its blocks lie side by side.
    k, count = prod(bounds(source.shape[1:])), rows(indices.shape)
    total = rows(source.shape[:1])
    kind = source.dtype.name
    constants = {
        "FORMAT": kind, "ALIGN": formats.reader(kind).align(k), "EVEN": k % 16 == 0, "GROUP": _UNITS_PER_GROUP
    }  # fmt: skip
    return [
        on_grid(
            get_rows, constants, along(count * -(-k // 16), _UNITS_PER_GROUP), w=slab.argument,
            table=table_of(source), indices=indices, out=node, first=slab.first, total=total, k=k,
            count=count, n=slab.count if source.op is weight_leaf else total,
        )
        for slab in slabs(source, context)
    ]  # fmt: skip


GET_ROWS = GpuLowering(("get_rows",), _lower, refuses=_refuses)
