"""Which neighbours in a program are made together: those whose order is of no matter.

Knows where values lie; nothing of kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphml.ir.node import Node
from graphml_gpu.dispatch import DeviceView, Dispatch, NodeResult
from graphml_gpu.driver import Range
from graphml_gpu.lowering import joints
from graphml_gpu.node_support import GpuNodeSupport
from graphml_gpu.places import GpuPlaces


def made_together(
    nodes: Sequence[Node], context: DeviceView, places: GpuPlaces, support: GpuNodeSupport
) -> tuple[Sequence[Node], Sequence[Dispatch]] | None:
    """The first of `nodes` with as many after it as a `Joint` takes, and their dispatches; None: alone.

    nodes: of a program in order, all with kernels.
    """
    for joint in joints():
        count = next((i for i, node in enumerate(nodes) if node.op.name not in joint.ops), len(nodes))
        for end in range(count, 1, -1):
            lowered = joint.lower(nodes[:end], context) if _apart(nodes[:end], places, support) else None
            if lowered is not None:
                return nodes[:end], lowered
    return None


def _apart(nodes: Sequence[Node], places: GpuPlaces, support: GpuNodeSupport) -> bool:
    """Whether no node reads or writes where another writes, and none needs scratch."""
    if any(map(support.workspace, nodes)):
        return False
    for node in nodes:
        written = list(_results(node, places))
        for other in nodes:
            if other is not node:
                touched = [*_operands(other, places), *_results(other, places)]
                if any(_overlap(a, b) for a in written for b in touched):
                    return False
    return True


def _results(node: Node, places: GpuPlaces) -> Iterator[Range | str]:
    for i in range(len(node.type.parts) or 1):
        state = places.state_of(node)
        yield (
            state
            if state is not None
            else places.range(NodeResult(node, i) if node.type.parts else node, None)
        )


def _operands(node: Node, places: GpuPlaces) -> Iterator[Range | str]:
    for source in node.inputs:
        state = places.state_of(source)
        if state is not None:
            yield state
        elif not places.is_weight(source):
            yield places.range(source, None)


def _overlap(a: Range | str, b: Range | str) -> bool:
    """Whether two ranges share bytes; states are known by their names."""
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return a[0] is b[0] and a[1] < b[1] + b[2] and b[1] < a[1] + a[2]
