"""Memory plan: lifetimes -> offsets in one arena, in-place reuse, views without storage.

Knows sizes only through the device. Buffers are placed largest first at the lowest offset that is free during
their whole life (greedy by size, Pisarchyk and Lee 2020, arXiv:2001.03288).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from graphml.backend import Device, Plan, RereadingDevice
from graphml.ir.graph import Graph
from graphml.ir.node import Node

ALIGNMENT = 64  # a cache line, and the widest vector


def aligned(n_bytes: int) -> int:
    """`n_bytes` rounded up to the alignment of buffers."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


@dataclass
class _Buffer:
    """Storage of one value, or of several that replace each other in place."""

    size: int
    first: int
    last: int
    values: list[Node] = field(default_factory=list)
    offset: int = -1


def plan_memory(graph: Graph, device: Device, slack: int = 0) -> Plan:
    """Place every value of the graph.

    slack: steps for which a buffer stays reserved after its last reader; a device that overlaps neighbouring
    steps needs fewer waits with a few. Inputs are live during the whole program, outputs until its end.
    """
    position = {node: i for i, node in enumerate(graph.nodes)}
    more = device.also_reads(graph) if isinstance(device, RereadingDevice) else {}
    last = _last_reads(graph, position, more)
    buffers: dict[Node, _Buffer] = {}
    scratch: dict[Node, _Buffer] = {}
    for i, node in enumerate(graph.nodes):
        if node.op.view:
            if node.inputs[0] in buffers:
                buffers[node] = buffers[node.inputs[0]]
            continue
        if node.op.name in ("weight", "state") or node.op.is_write:
            continue
        size = aligned(device.storage(node))
        taken = _take_over(node, size, i, buffers, more.get(node, ()))
        buffer = taken or _Buffer(size, 0 if node.op.name == "input" else i, last[node])
        buffer.last = max(buffer.last, last[node])
        buffer.values.append(node)
        buffers[node] = buffer
        work = device.workspace(node)
        if work:
            scratch[node] = _Buffer(aligned(work), i, i)
    every = list({id(b): b for b in (*buffers.values(), *scratch.values())}.values())
    bound = _largest_live_set(every, len(graph.nodes))
    _place(every, slack, bound)
    return Plan(
        {node: buffer.offset for node, buffer in buffers.items()},
        {node: buffer.offset for node, buffer in scratch.items()},
        max((b.offset + b.size for b in every), default=0),
        bound,
    )


def _last_reads(
    graph: Graph, position: dict[Node, int], more: Mapping[Node, Sequence[Node]]
) -> dict[Node, int]:
    """The last step at which a value's storage is needed; readers of a view count as readers of its input."""
    end = len(graph.nodes)
    last = dict(position)
    for i, node in enumerate(graph.nodes):
        for source in (*node.inputs, *more.get(node, ())):
            last[source] = i
    for node in (*graph.leaves("input").values(), *graph.outputs.values()):
        last[node] = end
    for node in reversed(graph.nodes):
        if node.op.view:
            last[node.inputs[0]] = max(last[node.inputs[0]], last[node])
    return last


def _take_over(
    node: Node, size: int, step: int, buffers: dict[Node, _Buffer], more: Sequence[Node]
) -> _Buffer | None:
    """The buffer of an input last read here that may be written in place; nothing else read here may use it.

    Never one of several results: it is a part of its buffer, at an offset that only the device knows. Nor one
    of another type: kernels write an element where they have read it.
    """
    for i in (i for i in node.op.inplace if i < len(node.inputs) and node.inputs[i].type == node.type):
        buffer = buffers.get(node.inputs[i])
        alone = sum(buffers.get(other) is buffer for other in (*node.inputs, *more)) == 1
        if buffer is None or buffer.values[0].type.parts:
            continue
        if alone and buffer.size == size and buffer.last == step:
            return buffer
    return None


def _largest_live_set(buffers: list[_Buffer], steps: int) -> int:
    change = [0] * (steps + 2)
    for buffer in buffers:
        change[buffer.first] += buffer.size
        change[buffer.last + 1] -= buffer.size
    live = best = 0
    for delta in change:
        live += delta
        best = max(best, live)
    return best


# Orders in which buffers are placed: the largest first; sometimes another leaves fewer gaps. The second
# places buffers that are live during the whole program first, inputs before all others.
_ORDERS: tuple[Callable[[_Buffer], tuple[int, ...]], ...] = (
    lambda b: (-b.size, b.first),
    lambda b: (b.first > 0, -b.size, b.first),
    lambda b: (-b.size * (b.last - b.first + 1), b.first),
    lambda b: (b.first, -b.size),
)


def _place(buffers: list[_Buffer], slack: int, bound: int) -> None:
    """Set the offset of every buffer; further orders are tried while the peak is not near the bound."""
    best: list[int] = []
    least = 0
    for order in _ORDERS:
        peak = _place_in_order(sorted(buffers, key=order), slack)
        if not best or peak < least:
            best, least = [buffer.offset for buffer in buffers], peak
        if slack or least <= bound * 1.05:  # with slack no plan comes near the bound
            break
    for buffer, offset in zip(buffers, best, strict=True):
        buffer.offset = offset


def _place_in_order(buffers: list[_Buffer], slack: int) -> int:
    """Place each buffer at the lowest offset that is free during its lifetime; returns the arena's bytes."""
    placed: list[_Buffer] = []
    for buffer in buffers:
        overlapping = sorted(
            (b for b in placed if b.first <= buffer.last + slack and buffer.first <= b.last + slack),
            key=lambda b: b.offset,
        )
        offset = 0
        for other in overlapping:
            if other.offset - offset >= buffer.size:
                break
            offset = max(offset, other.offset + other.size)
        buffer.offset = offset
        placed.append(buffer)
    return max((buffer.offset + buffer.size for buffer in buffers), default=0)
