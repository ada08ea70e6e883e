"""Several backends as one: its device holds theirs, lowers each part, and keeps states where they are.

Knows devices only through `graphml.backend`; `graphml.passes.place` decides where nodes go.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping, Sequence

from graphml.backend import (
    Backend,
    DeterministicDevice,
    Device,
    Plan,
    Program,
    Progress,
    RemoteDevice,
    State,
    on_device,
)
from graphml.compiler.partitions import ReadyPart, share_arenas
from graphml.compiler.parts_program import PartsProgram, PartsState
from graphml.errors import BackendError, UsageError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array, plain_bytes
from graphml.passes.cut import constants, cut_graph
from graphml.passes.plan import plan_memory

NOT_DETERMINISTIC = (
    "deterministic: wanted the backend 'cpu', here or in stages, which alone adds up a row in one order; "
    "got {!r}"
)
"""Of backends that the user named."""


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

    @property
    def memory_bytes(self) -> int | None:
        """See `graphml.backend.MemoryDevice`: of all together, where all are on other machines."""
        stages = [device for device in self.devices.values() if isinstance(device, RemoteDevice)]
        is_elsewhere = len(stages) == len(self.devices)
        return sum(stage.memory_bytes for stage in stages) if is_elsewhere else None

    @property
    def deterministic(self) -> bool:
        """See `graphml.backend.DeterministicDevice`: whether all of them are."""
        own = self._deterministic()
        return own is not None and all(device.deterministic for device in own)

    @property
    def order_of_sums(self) -> str:
        """See `graphml.backend.DeterministicDevice`: of each, in order."""
        return ",".join(device.order_of_sums for device in self._deterministic() or ())

    def make_deterministic(self) -> None:
        """See `graphml.backend.DeterministicDevice`; BackendError where one of them cannot be."""
        own = self._deterministic()
        if own is None:
            raise BackendError(NOT_DETERMINISTIC.format(self.name))
        for device in own:
            device.make_deterministic()

    def _deterministic(self) -> Sequence[DeterministicDevice] | None:
        own = [device for device in self.devices.values() if isinstance(device, DeterministicDevice)]
        return own if len(own) == len(self.devices) else None

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
