"""Multi-device programs: the parts run in order, values pass between backends through host arrays.

Knows devices only through `graphml.backend`; `graphml.passes.place` decides where nodes go.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphml.backend import (
    Arena,
    Backend,
    Device,
    Plan,
    Program,
    Progress,
    State,
    StepTime,
    TakeTimes,
    TimedProgram,
    on_device,
)
from graphml.errors import BackendError, UsageError
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Array, plain_bytes
from graphml.ir.shape import Shape, bounds, resolve
from graphml.passes.cut import COPY, constants, cut_graph
from graphml.passes.plan import plan_memory


@dataclass(frozen=True)
class ReadyPart:
    """A part after its passes: the graph that its device lowers, and its memory plan."""

    backend: str
    graph: Graph
    plan: Plan


class PartsState:
    """The states of a session, each on the device of its layer."""

    def __init__(self, states: Mapping[str, State], homes: Mapping[str, str]) -> None:
        self.states, self.homes = states, homes

    @property
    def n_bytes(self) -> int:
        """Bytes on all devices."""
        return sum(state.n_bytes for state in self.states.values())

    def array(self, name: str) -> Array:
        """The array of one state, wherever it is."""
        return self.states[self.homes[name]].array(name)


class PartsDevice:
    """Several devices in the user's order of preference."""

    def __init__(self, backends: Sequence[Backend], threads: int | None) -> None:
        self.devices: dict[str, Device] = {}
        self._homes: weakref.WeakKeyDictionary[Graph, Mapping[str, str]] = weakref.WeakKeyDictionary()
        self._first: dict[str, dict[str, str]] = {}
        self._last: dict[str, str] = {}  # node of the graph placed last -> its backend
        with contextlib.ExitStack() as undo:
            for backend in backends:
                self.devices[backend.name] = backend.open(threads)
                undo.callback(self.devices[backend.name].close)
            undo.pop_all()
        self.backends = tuple(on_device(backend, self.devices[backend.name]) for backend in backends)

    def homes(self, rules: str) -> dict[str, str]:
        """The backend of each state after a graph was placed by these rules; the next graph keeps it."""
        return self._first.setdefault(rules, {})

    def settle(
        self, graph: Graph, rules: str, homes: Mapping[str, str], backends: Mapping[Node, str]
    ) -> None:
        """Remember the backends of the nodes and states of a compiled graph."""
        self._last = {node.name: name for node, name in backends.items()}
        self._homes[graph] = homes
        for name, home in homes.items():
            self.homes(rules).setdefault(name, home)

    def storage(self, node: Node) -> int:
        """Bytes in NumPy, since the device is not known yet."""
        return sum(plain_bytes(kind) for kind in node.type.parts or (node.type,))

    def workspace(self, node: Node) -> int:
        """0: the workspace is not known before a node is placed."""
        return 0

    def lower(self, graph: Graph, plan: Plan, weights: Mapping[str, Array], progress: Progress) -> Program:
        """Make the program of a graph whose nodes have the names of the graph that was placed last.

        Each node goes to the backend of its namesake, else of its first operand. The plan is not used: every
        part gets its own.
        """
        if not self._last:
            raise BackendError(f"{self.name}: a graph for several backends must be placed first")
        where: dict[Node, str] = {}
        known = constants(graph)
        for node in graph.nodes:
            if node.op.name not in ("input", "weight") and node not in known:
                near = (where[source] for source in node.inputs if source in where)
                where[node] = self._last.get(node.name) or next(near, self.backends[0].name)
        parts = share_arenas(
            [
                ReadyPart(part.backend, part.graph, plan_memory(part.graph, self.devices[part.backend]))
                for part in cut_graph(graph, where).parts
            ]
        )
        homes = {name: where[node] for name, node in graph.leaves("state").items()}
        self._homes[graph] = homes
        return lower_parts(self, parts, homes, weights, progress)

    @property
    def name(self) -> str:
        """The backends' names, as the user writes them."""
        return ",".join(self.devices)

    def state(self, graph: Graph, dims: Mapping[str, int]) -> PartsState:
        """Zeroed arrays of the graph's states, each on its device."""
        homes = self._homes.get(graph)
        if homes is None:
            raise BackendError(
                f"{self.name}: wanted a graph that compile_graph placed, to know where its states are"
            )
        leaves = graph.leaves("state")
        states: dict[str, State] = {}
        for name, device in self.devices.items():
            own = tuple(node for state, node in leaves.items() if homes[state] == name)
            if own:
                states[name] = device.state(Graph(own, {}), dims)
        return PartsState(states, homes)

    def close(self) -> None:
        """Close every device."""
        with contextlib.ExitStack() as stack:
            for device in self.devices.values():
                stack.callback(device.close)


def multi_device_backend(backends: Sequence[Backend]) -> Backend:
    """One backend made of several, in order of preference; its device is a `PartsDevice`."""
    names = [backend.name for backend in backends]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"backend: {twice[0]!r} stands twice in {','.join(names)!r}")

    def refuses(node: Node) -> str | None:
        reasons = [backend.refuses(node) for backend in backends]
        return None if None in reasons else "; ".join(map(str, reasons))

    return Backend(
        ",".join(names),
        open=lambda threads: PartsDevice(backends, threads),
        refuses=refuses,
        fused=frozenset().union(*(backend.fused for backend in backends)),
        describe=lambda: {backend.name: backend.describe() for backend in backends},
    )


@dataclass
class _Link:
    """A value of a step in a host array: an input, or one that passes between parts."""

    shape: Shape
    array: Array

    def window(self, dims: Mapping[str, int]) -> Array:
        return self.array[tuple(map(slice, resolve(self.shape, dims)))]


class PartsProgram:
    """See `graphml.backend.Program`. One run at a time."""

    def __init__(
        self, parts: Sequence[ReadyPart], programs: Sequence[Program], homes: Mapping[str, str]
    ) -> None:
        self.parts, self.programs, self._homes = tuple(parts), tuple(programs), homes
        self._crossing: dict[str, _Link] = {}
        self._given: dict[str, _Link] = {}
        for part in parts:
            crossing = {name.removeprefix(COPY): node for name, node in part.graph.outputs.items()
                        if name.startswith(COPY)}  # fmt: skip
            self._crossing |= {name: _link(node) for name, node in crossing.items()}
            for name, node in part.graph.leaves("input").items():
                if name not in self._crossing:
                    self._given.setdefault(name, _link(node))
        self.inputs: dict[str, Array] = {name: link.array for name, link in self._given.items()}
        self._take: TakeTimes | None = None
        self._times: list[Callable[[], Sequence[StepTime]]] = []

    def time_steps(self, take: TakeTimes | None) -> None:
        """See `graphml.backend.TimedProgram`; the times of all parts that can be timed are collected."""

        def collect(dims: Mapping[str, int], times: Callable[[], Sequence[StepTime]]) -> None:
            self._times.append(times)

        self._take = take
        for program in self.programs:
            if isinstance(program, TimedProgram):
                program.time_steps(None if take is None else collect)

    def run(self, dims: Mapping[str, int], state: State) -> dict[str, Array]:
        """Run the parts in order; see `graphml.backend.Program`."""
        if not isinstance(state, PartsState) or state.homes != self._homes:
            raise BackendError("the session's state was made for another placement than the program")
        self._times = []
        outputs: dict[str, Array] = {}
        for i, (part, program) in enumerate(zip(self.parts, self.programs, strict=True)):
            for name, array in program.inputs.items():
                values = (self._crossing.get(name) or self._given[name]).window(dims)
                array[tuple(map(slice, values.shape))] = values
            made = program.run(dims, state.states.get(part.backend, _NO_STATE))
            for name, value in made.items():
                if name.startswith(COPY):
                    self._crossing[name.removeprefix(COPY)].window(dims)[...] = value
                else:  # a copy, since a later part of the same device may overwrite the array
                    outputs[name] = value if i == len(self.parts) - 1 else value.copy()
        if self._take is not None:
            kept = self._times
            self._take(dict(dims), lambda: [step for times in kept for step in times()])
        return outputs


def _link(node: Node) -> _Link:
    return _Link(node.shape, np.zeros(bounds(node.shape), node.dtype.numpy))


_NO_STATE = PartsState({}, {})


def arenas(parts: Sequence[ReadyPart]) -> dict[str, tuple[int, int]]:
    """Backend -> (peak, lower bound) in bytes of the arena shared by its parts, which never run at once."""
    found: dict[str, tuple[int, int]] = {}
    for part in parts:
        peak, bound = found.get(part.backend, (0, 0))
        found[part.backend] = max(peak, part.plan.peak), max(bound, part.plan.lower_bound)
    return found


def whole_plan(parts: Sequence[ReadyPart], nodes: Sequence[Mapping[Node, Node]]) -> Plan:
    """One plan of the joined graph, from the plans of the parts; offsets are within a value's own device."""
    offsets: dict[Node, int] = {}
    workspaces: dict[Node, int] = {}
    for part, new in zip(parts, nodes, strict=True):
        offsets |= {new[node]: at for node, at in part.plan.offsets.items() if node.name == new[node].name}
        workspaces |= {new[node]: at for node, at in part.plan.workspaces.items()}
    sizes = arenas(parts).values()
    return Plan(offsets, workspaces, sum(peak for peak, _ in sizes), sum(bound for _, bound in sizes))


def backends_of(parts: Sequence[ReadyPart], nodes: Sequence[Mapping[Node, Node]]) -> dict[Node, str]:
    """Computed node or state of the joined graph -> its backend."""
    found: dict[Node, str] = {}
    for part, new in zip(parts, nodes, strict=True):
        for node in part.graph.nodes:
            if node.op.name not in ("input", "weight"):
                found.setdefault(new[node], part.backend)
    return found


def lower_parts(
    device: PartsDevice,
    parts: Sequence[ReadyPart],
    homes: Mapping[str, str],
    weights: Mapping[str, Array],
    progress: Progress,
) -> PartsProgram:
    """Lower each part on its device, and join the programs."""
    programs = [
        device.devices[part.backend].lower(part.graph, part.plan, weights, progress) for part in parts
    ]
    return PartsProgram(parts, programs, homes)


def share_arenas(parts: Sequence[ReadyPart]) -> tuple[ReadyPart, ...]:
    """Plan the parts of each backend, which never run at once, in one arena."""
    shared = {name: Arena(peak) for name, (peak, _) in arenas(parts).items()}
    return tuple(replace(part, plan=replace(part.plan, arena=shared[part.backend])) for part in parts)


def join(graphs: Sequence[Graph], outputs: Sequence[str]) -> tuple[Graph, list[dict[Node, Node]]]:
    """The parts joined into one graph for inspection, and for each part its nodes -> the joined graph's."""
    by_name: dict[str, Node] = {}
    crossed: dict[str, Node] = {}
    written: dict[str, Node] = {}
    order: list[Node] = []
    found: dict[str, Node] = {}
    maps: list[dict[Node, Node]] = []
    for i, graph in enumerate(graphs):
        new: dict[Node, Node] = {}
        shared = constants(graph)
        for node in graph.nodes:
            if node.op.name == "input" and node.name in crossed:
                new[node] = crossed[node.name]
            elif node.op.name == "state" and node.name in written:
                new[node] = written[node.name]
            elif node.name in by_name and (node.op.family == "leaf" or node in shared):
                new[node] = by_name[node.name]
            else:
                name = node.name if node.name not in by_name else f"{node.name}@{i}"
                new[node] = replace(node, inputs=tuple(new[source] for source in node.inputs), name=name)
                by_name[name] = new[node]
                order.append(new[node])
            if node.op.is_write:
                written[_leaf(node).name] = new[node]
        crossed |= {name.removeprefix(COPY): new[node] for name, node in graph.outputs.items()}
        found |= {name: new[node] for name, node in graph.outputs.items() if not name.startswith(COPY)}
        maps.append(new)
    return make_graph(order, {name: found[name] for name in outputs}), maps


def _leaf(node: Node) -> Node:
    while node.op.name != "state":
        node = node.inputs[node.op.writes or 0]
    return node
