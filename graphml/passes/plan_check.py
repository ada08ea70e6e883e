"""Checks a memory plan by a walk of its own: no two values that are needed at a time share bytes.

Runs whenever a plan is made. Shares nothing with the planner but its rules: an operand that is read last by a
node may be overwritten by its result if the op says so (`Op.inplace`), and a view has no bytes of its own.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TypeAlias

from graphml.backend import Device, Plan, RereadingDevice
from graphml.backend.node_values import viewed
from graphml.errors import GraphError
from graphml.ir.graph import Graph
from graphml.ir.node import Node

_Bytes: TypeAlias = tuple[int, int, int]
"""Where a value begins and ends, and its number in the walk: plain tuples, compared at every step."""


def check_plan(graph: Graph, plan: Plan, device: Device) -> Plan:
    """The plan; a `GraphError` names two values that share bytes, and the step at which both are needed."""
    more = device.also_reads(graph) if isinstance(device, RereadingDevice) else {}
    reads = [[viewed(source) for source in (*node.inputs, *more.get(node, ()))] for node in graph.nodes]
    last = _last_reads(graph, reads)
    walk = _Walk(graph.nodes)
    for node in graph.leaves("input").values():  # filled before the first step
        walk.put(node, plan.offsets[node], device.storage(node), ())
    for i, node in enumerate(graph.nodes):
        own = node in plan.offsets and viewed(node) is node
        if own and node.op.name != "input":
            walk.put(node, plan.offsets[node], device.storage(node), _overwritten(node, reads[i], last, i))
        if node in plan.workspaces:
            walk.try_out(node, plan.workspaces[node], device.workspace(node))
        for source in {*reads[i], viewed(node)}:
            if last[source] <= i:
                walk.take_away(source)
    return plan


def _last_reads(graph: Graph, reads: Sequence[Sequence[Node]]) -> dict[Node, int]:
    last = {node: i for i, node in enumerate(graph.nodes)}
    for i, sources in enumerate(reads):
        last.update(dict.fromkeys(sources, i))
    kept = [*graph.leaves("input").values(), *map(viewed, graph.outputs.values())]
    return {**last, **dict.fromkeys(kept, len(graph.nodes))}


def _overwritten(node: Node, reads: Sequence[Node], last: dict[Node, int], i: int) -> Sequence[Node]:
    """The operands that the result may lie on: of its type, read for the last time, by this operand alone."""
    taken = (reads[k] for k in node.op.inplace if k < len(node.inputs) and node.inputs[k].type == node.type)
    return [source for source in taken if last[source] == i and list(reads).count(source) == 1]


class _Walk:
    """The bytes of the values that are needed at a step, in order."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._number = {node: i for i, node in enumerate(nodes)}
        self._live: list[_Bytes] = []
        self._at: dict[Node, _Bytes] = {}

    def put(self, node: Node, begin: int, size: int, overwritten: Sequence[Node]) -> None:
        """A value comes: it may lie on what it overwrites, from the same byte on, and on nothing else."""
        for source in overwritten:
            if source in self._at and self._at[source][0] == begin:
                self.take_away(source)
        self.try_out(node, begin, size)
        if size:
            self._at[node] = held = begin, begin + size, self._number[node]
            insort(self._live, held)

    def try_out(self, node: Node, begin: int, size: int) -> None:
        """Refuse bytes that a value has which is needed still."""
        following = bisect_left(self._live, (begin, -1, -1))
        # What lives does not overlap, so that only the value before and the one behind can be met.
        for first, end, number in self._live[max(following - 1, 0) : following + 1]:
            if size and first < begin + size and begin < end:
                raise GraphError(
                    f"memory plan: %{self._nodes[number].name} has bytes {first} to {end} and "
                    f"is read still where %{node.name} gets bytes {begin} to {begin + size}"
                )

    def take_away(self, node: Node) -> None:
        """A value is not needed any more."""
        held = self._at.pop(node, None)
        if held is not None:
            del self._live[bisect_left(self._live, held)]
