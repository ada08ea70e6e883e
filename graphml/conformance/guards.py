"""Guards: a plan with constant words between all values, which detect writes out of bounds.

The words are inputs if a device keeps inputs in the arena, else copies made before anything else runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from graphml.backend import Device, Plan, no_progress
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph, make_graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Array, Type
from graphml.ir.ops.layout import permute
from graphml.ir.ops.leaf import input_leaf
from graphml.passes.plan import ALIGNMENT

PREFIX = "guard_"
SHAPE = (2, 128)
BEYOND = 1 << 16  # bytes after the last guard, so that a write far beyond it does not crash the process
WORD = np.uint32(0x7FC0BEEF)  # a NaN: computing with it shows in the result


def words() -> Array:
    """The contents of a guard."""
    return np.full(SHAPE, WORD, np.uint32).view(np.float32)


@dataclass
class _Layout:
    """Values and workspaces in sequence in the arena, with a guard before each and one at the end."""

    device: Device
    source: Node | None
    guards: list[Node] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: ["the start"])
    offsets: dict[Node, int] = field(default_factory=dict)
    workspaces: dict[Node, int] = field(default_factory=dict)
    end: int = 0

    def take(self, n_bytes: int, name: str) -> int:
        """Reserve `n_bytes` after a guard of their own; returns their offset."""
        self.wall()
        self.names.append(name)
        return self._next(n_bytes)

    def wall(self) -> None:
        """Add a guard after the last value."""
        kind, name = Type(F32, SHAPE), f"{PREFIX}{len(self.guards)}"
        if self.source is None:
            guard = Node(input_leaf, (), kind, name)
        else:
            guard = Node(permute, (self.source,), kind, name, {"axes": (0, 1)})
        self.offsets[guard] = self._next(self.device.storage(guard))
        self.guards.append(guard)

    def _next(self, n_bytes: int) -> int:
        start, self.end = self.end, self.end + -(-n_bytes // ALIGNMENT) * ALIGNMENT
        return start


@dataclass(frozen=True)
class Guarded:
    """A graph with guards, its plan, and for each guard the names of the values before and after it."""

    graph: Graph
    plan: Plan
    neighbours: tuple[tuple[str, str], ...]


def guard(graph: Graph, device: Device, over: dict[Node, Node], in_arena: bool) -> Guarded:
    """A plan that has a guard between any two values; guards are outputs too.

    over: values that reuse the place of others, if they are as large. in_arena: whether inputs are there.
    """
    source = None if in_arena else Node(input_leaf, (), Type(F32, SHAPE), f"{PREFIX}source")
    places = _Layout(device, source)
    if source is not None:
        places.offsets[source] = places.take(device.storage(source), source.name)
    for node in graph.nodes:
        if node.op.view:
            if node.inputs[0] in places.offsets:
                places.offsets[node] = places.offsets[node.inputs[0]]
        elif node.op.name not in ("weight", "state") and not node.op.is_write:
            size = device.storage(node)
            if node in over and device.storage(over[node]) == size:
                places.offsets[node] = places.offsets[over[node]]
            else:
                places.offsets[node] = places.take(size, node.name)
        if device.workspace(node):
            places.workspaces[node] = places.take(device.workspace(node), f"the workspace of {node.name}")
    places.wall()
    first = [*([] if source is None else [source]), *places.guards]
    whole = make_graph(
        (*first, *graph.nodes), {**graph.outputs, **{guarded.name: guarded for guarded in places.guards}}
    )
    plan = Plan(places.offsets, places.workspaces, places.end + BEYOND, places.end)
    return Guarded(whole, plan, tuple(zip(places.names, [*places.names[1:], "the end"], strict=True)))


def inputs_in_arena(device: Device) -> bool:
    """Whether a device keeps inputs in the arena by the plan: then they are there before anything runs."""
    g = Builder()
    a, b = (g.input(name, F32, SHAPE) for name in "ab")
    graph = g.finish(result=g.add(a, b))
    size = -(-max(map(device.storage, graph.nodes)) // ALIGNMENT) * ALIGNMENT
    plan = Plan({b: 0, graph.outputs["result"]: 3 * size, a: 6 * size}, {}, 7 * size, 7 * size)
    inputs = device.lower(graph, plan, {}, no_progress).inputs
    return bool(inputs["a"].ctypes.data - inputs["b"].ctypes.data == 6 * size)
