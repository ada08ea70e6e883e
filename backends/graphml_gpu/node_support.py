"""Which nodes a backend has kernels for, and how many bytes their values take on a device."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from graphml.ir.node import Node
from graphml.ir.op import Op, Type
from graphml.ir.shape import bounds
from graphml_gpu.dispatch import DeviceView, Dispatch, GpuLowering
from graphml_gpu.lowering import table
from graphml_gpu.own_ops.own_kernels import own_lowering

ALIGNMENT = 512
"""Values begin at multiples of it, so that a binding can begin where a value does, on any common device."""


def computes(node: Node) -> bool:
    """Whether a node is worked out at all: leaves and views are not."""
    return node.op.family != "leaf" and not node.op.view


class GpuNodeSupport:
    """The lowerings of a backend: those of this package, and kernels that came with ops of one's own.

    backend: its name, under which ops of one's own have kernels.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def lowering(self, op: Op) -> GpuLowering | None:
        """How nodes of an op become dispatches; None where there is no kernel for any."""
        return table().get(op.name) or own_lowering(op, self.backend)

    def refuses(self, node: Node) -> str | None:
        """Why a node has no kernel here; such a node runs in NumPy between the dispatches."""
        if not computes(node):
            return None
        lowering = self.lowering(node.op)
        return lowering.refuses(node) if lowering else f"no kernel for {node.op.name}"

    def lower(self, node: Node, context: DeviceView) -> Sequence[Dispatch]:
        """The dispatches of a node that is not refused."""
        lowering = self.lowering(node.op)
        assert lowering is not None, node.op
        return lowering.lower(node, context)

    def workspace(self, node: Node) -> int:
        """Bytes of scratch of a node that is not refused, aligned like values; 0: none."""
        lowering = self.lowering(node.op)
        wanted = lowering.workspace(node) if lowering else 0
        return aligned(wanted) if wanted else 0


def aligned(n_bytes: int) -> int:
    """The next multiple of the alignment; at least one."""
    return max(-(-n_bytes // ALIGNMENT), 1) * ALIGNMENT


def value_bytes(kind: Type) -> int:
    """Bytes of a value at its bounds, aligned; several results follow each other, each aligned."""
    if kind.parts:
        return sum(map(value_bytes, kind.parts))
    *lead, last = bounds(kind.shape) or (1,)
    return aligned(prod(lead) * kind.dtype.bytes_for(last))


def part_offset(kind: Type, index: int) -> int:
    """Where a result begins in the value of a node that has several."""
    return sum(map(value_bytes, kind.parts[:index]))
