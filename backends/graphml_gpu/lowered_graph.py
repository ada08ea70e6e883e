"""A graph as dispatches of kernels, in order, with stretches of nodes that NumPy works out between them.

Knows nodes, lowerings and where values are; nothing of drivers' recordings or runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from graphml.errors import BackendError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.ops.leaf import input_leaf
from graphml.ir.shape import Shape
from graphml_gpu.bindings import begins, bindable, ranges
from graphml_gpu.conversions_in_products import own_rows
from graphml_gpu.dispatch import Argument, DeviceView, Dispatch
from graphml_gpu.driver import Bound, Range
from graphml_gpu.language import Specialised
from graphml_gpu.memory import Memory
from graphml_gpu.node_support import GpuNodeSupport, computes
from graphml_gpu.parameters import DispatchNumbers, Largest
from graphml_gpu.places import GpuPlaces
from graphml_gpu.state import GpuState
from graphml_gpu.together import made_together
from graphml_gpu.tuning import GpuTuning


@dataclass(frozen=True)
class Stretch:
    """Dispatches first to last of the program, submitted together; changes: the states that they write."""

    first: int
    last: int
    changes: frozenset[str]


@dataclass(frozen=True)
class HostStretch:
    """Nodes worked out in NumPy, one after the other."""

    nodes: tuple[Node, ...]


class LoweredGraph:
    """The dispatches of a graph, each with its node (of several made together the first) and its kernel.

    constants: nodes whose values are known. support: what the device runs. parts: what is
    submitted or worked out in NumPy, in order. fallbacks: the nodes that run in NumPy. largest: name of an
    input -> how far it goes, and its shape, where numbers of dispatches follow it.
    """

    def __init__(
        self,
        graph: Graph,
        memory: Memory,
        places: GpuPlaces,
        constants: Collection[Node],
        tuning: GpuTuning,
        support: GpuNodeSupport,
    ) -> None:
        self._places = places
        self.dispatches: list[tuple[Node, Dispatch]] = []
        self.kernels: list[Specialised] = []
        self.fallbacks: list[Node] = []
        self.parts: list[Stretch | HostStretch] = []
        self.largest: dict[str, tuple[Largest, Shape]] = {}
        own = own_rows(graph, memory.driver.facts, memory.features, support.refuses)
        context = DeviceView(
            memory.driver.facts, memory.features, self._places.shards, self._follow, tuning, own.get
        )
        computed = filter(computes, graph.nodes)
        todo = [node for node in computed if node not in constants and node not in own]
        for refused, run in itertools.groupby(todo, lambda node: support.refuses(node) is not None):
            nodes = tuple(run)
            if refused:
                self.fallbacks += nodes
                self.parts.append(HostStretch(nodes))
                continue
            while nodes:
                together = made_together(nodes, context, self._places, support)
                covered, lowered = together or (nodes[:1], support.lower(nodes[0], context))
                self._add(nodes[0], lowered, context)
                nodes = nodes[len(covered) :]

    def _add(self, node: Node, lowered: Sequence[Dispatch], context: DeviceView) -> None:
        first = len(self.dispatches)
        changes: frozenset[str] = frozenset()
        for dispatch in lowered:
            _check(node, dispatch)
            kernel = dispatch.kernel.specialise(context.features, **dispatch.constants)
            self.kernels.append(bindable(kernel, dispatch, self._places, context.facts))
            self.dispatches.append((node, dispatch))
            written = (dispatch.buffers[buffer.name] for buffer in kernel.buffers if buffer.writes)
            changes |= {name for name in map(self._places.state_of, written) if name is not None}
        before = self.parts[-1] if self.parts else None
        if isinstance(before, Stretch):
            self.parts[-1] = Stretch(before.first, len(self.dispatches), before.changes | changes)
        elif lowered:
            self.parts.append(Stretch(first, len(self.dispatches), changes))

    def _follow(self, node: Node) -> Largest | None:
        """See `dispatch.Context.largest`."""
        if node.op is not input_leaf:
            return None
        self.largest[node.name] = Largest(node.name), node.shape
        return self.largest[node.name][0]

    def numbers(self, i: int) -> DispatchNumbers:
        """The scalars of a dispatch, with the language's own: where in a binding a value begins."""
        kernel, (_, dispatch) = self.kernels[i], self.dispatches[i]
        words = [(scalar.name, scalar.kind) for scalar in kernel.scalars]
        values = {**begins(kernel, dispatch, self._places), **dispatch.scalars}
        return DispatchNumbers(kernel.name, words, values, dispatch.groups, dispatch.turns)

    def bound(self, i: int, state: GpuState | None, numbers: Range) -> Bound:
        """A dispatch with its kernel and bindings; numbers: where its scalars are."""
        kernel, (_, dispatch) = self.kernels[i], self.dispatches[i]
        return Bound(kernel, ranges(kernel, dispatch, self._places, state), numbers)

    @property
    def arguments(self) -> list[Argument]:
        """What all dispatches are bound to."""
        return [argument for _, dispatch in self.dispatches for argument in dispatch.buffers.values()]


def _check(node: Node, dispatch: Dispatch) -> None:
    wanted, passed = dispatch.kernel.buffers, set(dispatch.buffers)
    if wanted != passed:
        raise BackendError(
            f"kernel {dispatch.kernel.name} for {node.name}: buffers missing {sorted(wanted - passed)},"
            f" unknown {sorted(passed - wanted)}"
        )
