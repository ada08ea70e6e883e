"""Which nodes have kernels by a table of lowerings, and which of them every thread may compute for itself.

A device has one table: that of this backend, or of another made of kernels for the same tape.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from graphml.backend.node_values import viewed
from graphml.ir.node import Node
from graphml.ir.op import Op
from graphml.ir.shape import bounds
from graphml_cpu.array_kernels.own_lowering import own_lowering
from graphml_cpu.lowering.step import CpuLowering
from graphml_cpu.sizes import value_bytes

_REPLICATE_LIMIT = 1 << 16  # bytes: a longer row is shared among the threads, a barrier is cheaper then


class CpuNodeSupport:
    """The lowerings of a device.

    backend: its name, under which ops of one's own have kernels. table: op name -> lowering.
    """

    def __init__(self, backend: str, table: Mapping[str, CpuLowering]) -> None:
        self.backend, self.table = backend, table

    def lowering(self, op: Op) -> CpuLowering | None:
        """How nodes of an op become kernel calls; None where there is no kernel for any."""
        return self.table.get(op.name) or own_lowering(op, self.backend)

    def refuses(self, node: Node) -> str | None:
        """Why a node has no kernel; such a node runs in NumPy between the kernels."""
        if node.op.family == "leaf" or node.op.view:
            return None
        lowering = self.lowering(node.op)
        return lowering.refuses(node) if lowering else f"no kernel for {node.op.name}"

    def workspace(self, node: Node, threads: int) -> int:
        """Bytes of scratch that a node's kernels share."""
        lowering = self.lowering(node.op)
        return lowering.workspace(node, threads) if lowering and self.refuses(node) is None else 0

    def replicable(self, node: Node) -> bool:
        """Whether every thread may compute this value for itself: cheap single rows, to save a barrier.

        Where it does: `own_rows`.
        """
        node = viewed(node)
        lowering = self.lowering(node.op)
        if lowering is None or not lowering.replicable or lowering.shared(node) or self.refuses(node):
            return False
        first = (node.type.parts or (node.type,))[0].shape[:1]
        return prod(bounds(first)) == 1 and value_bytes(node.type) <= _REPLICATE_LIMIT
