"""Cuts a placed graph into parts: runs of nodes on one backend, each a graph of its own, in order.

Knows names of backends only. The cost of passing a value between parts is counted in bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.ops.leaf import input_leaf
from graphml.ir.shape import Symbol, bounds
from graphml.ir.state_order import state_of

COPY = "copy:"  # prefix of the name of an output that is an input of later parts


@dataclass(frozen=True)
class Split:
    """A run of nodes on one backend.

    graph: values from earlier parts are inputs by their name; values for later parts are outputs `copy:NAME`.
    """

    index: int
    backend: str
    graph: Graph


@dataclass(frozen=True)
class Copy:
    """A value passed from the part that computes it to one that reads it."""

    name: str
    source: int
    target: int
    token_bytes: int  # in a step of one token
    bound_bytes: int  # at the bounds of its dimensions


@dataclass(frozen=True)
class Cut:
    """The parts in the order in which they run, and the values passed between them."""

    parts: tuple[Split, ...]
    copies: tuple[Copy, ...]

    @property
    def token_bytes(self) -> int:
        """Bytes passed between parts in a step of one token."""
        return sum(copy.token_bytes for copy in self.copies)

    @property
    def bound_bytes(self) -> int:
        """Bytes passed between parts in the largest step."""
        return sum(copy.bound_bytes for copy in self.copies)


def constants(graph: Graph) -> set[Node]:
    """The computed values that depend on weights alone, or on nothing."""
    known: set[Node] = set()
    for node in graph.nodes:
        if node.op.family != "leaf" and all(
            source.op.name == "weight" or source in known for source in node.inputs
        ):
            known.add(node)
    return known


def cut_graph(graph: Graph, backend_of: Mapping[Node, str]) -> Cut:
    """Order the nodes so that the backend changes as seldom as possible, and cut where it changes.

    backend_of: of every computed node that is no constant, and of the states. The number of parts is minimal
    for two backends, and low for more. Weights and constants are in every part that reads them.
    """
    computed = [node for node in graph.nodes if node in backend_of and node.op.name != "state"]
    before = _must_precede(graph, computed)
    starts = dict.fromkeys(backend_of[node] for node in computed)
    orders = [_order(computed, before, backend_of, start) for start in starts]
    runs = min(orders, key=len, default=[])
    home = {node: i for i, run in enumerate(runs) for node in run}
    # A recurrent state is an output where its part leaves it.
    home |= {node.inputs[node.op.writes or 0]: home[node] for node in computed if node.op.recurrent}
    parts, copies = [], []
    crossing = _crossing(computed, home)
    for i, run in enumerate(runs):
        taken = [node for node, targets in crossing.items() if i in targets]
        copied = [node for node in run if node in crossing]
        outputs = {name: node for name, node in graph.outputs.items() if home.get(node) == i}
        if i == len(runs) - 1:  # leaves and constants may be outputs too
            outputs |= {name: node for name, node in graph.outputs.items() if node not in home}
        outputs |= {COPY + node.name: node for node in copied}
        parts.append(Split(i, backend_of[run[0]], _part(run, taken, outputs)))
        copies += [
            Copy(node.name, home[node], i, _bytes(node, for_token=True), _bytes(node, for_token=False))
            for node in taken
        ]
    return Cut(tuple(parts), tuple(copies))


def _must_precede(graph: Graph, computed: list[Node]) -> dict[Node, set[Node]]:
    """For each node those that run before it: inputs, and the readers of a state that the node changes."""
    mine = set(computed)
    before = {node: {source for source in node.inputs if source in mine} for node in computed}
    readers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for i, source in enumerate(node.inputs):
            if node.op.writes == i and node in before:
                before[node] |= {other for other in readers.get(source, ()) if other in mine}
            readers.setdefault(source, []).append(node)
    return before


def _order(
    computed: list[Node], before: Mapping[Node, set[Node]], backend_of: Mapping[Node, str], start: str
) -> list[list[Node]]:
    """Runs of nodes: all that are ready on one backend, then the next backend, that of the earliest node."""
    position = {node: i for i, node in enumerate(computed)}
    waits = {node: len(before[node]) for node in computed}
    after: dict[Node, list[Node]] = {node: [] for node in computed}
    for node, sources in before.items():
        for source in sources:
            after[source].append(node)
    ready: dict[str, list[int]] = {}
    for node in computed:
        if not waits[node]:
            heapq.heappush(ready.setdefault(backend_of[node], []), position[node])
    runs: list[list[Node]] = []
    current = start
    while any(ready.values()):
        if not ready.get(current):
            current = min((name for name in ready if ready[name]), key=lambda name: ready[name][0])
        run: list[Node] = []
        while ready[current]:
            node = computed[heapq.heappop(ready[current])]
            run.append(node)
            for other in after[node]:
                waits[other] -= 1
                if not waits[other]:
                    heapq.heappush(ready.setdefault(backend_of[other], []), position[other])
        runs.append(run)
    return runs


def _crossing(computed: list[Node], home: Mapping[Node, int]) -> dict[Node, set[int]]:
    """Value -> the parts other than its own that read it."""
    readers: dict[Node, set[int]] = {}
    for node in computed:
        for source in node.inputs:
            if source in home and home[source] != home[node] and state_of(source) is None:
                readers.setdefault(source, set()).add(home[node])
    return dict(sorted(readers.items(), key=lambda item: home[item[0]]))


def _part(run: list[Node], taken: list[Node], outputs: Mapping[str, Node]) -> Graph:
    """The graph of a run, with its leaves and constants, and inputs for the values of other parts."""
    new = {node: Node(input_leaf, (), node.type, node.name, source=node.source) for node in taken}
    order = list(new.values())
    mine = set(run)

    def local(node: Node) -> Node:
        if node not in new:
            if node.op.is_write and node not in mine:  # a state that an earlier part has changed
                new[node] = local(node.inputs[node.op.writes or 0])
            else:
                new[node] = node.on(tuple(local(source) for source in node.inputs))
                order.append(new[node])
        return new[node]

    for node in (*run, *outputs.values()):
        local(node)
    return make_graph(order, {name: new[node] for name, node in outputs.items()})


def _bytes(node: Node, for_token: bool) -> int:
    """Bytes of a value; for_token: symbols that count tokens, rows or sequences are 1."""
    *lead, last = (
        1 if for_token and isinstance(dim, Symbol) and dim.name in ("T", "O", "S") else size
        for dim, size in zip(node.shape, bounds(node.shape), strict=True)
    ) if node.shape else (1,)  # fmt: skip
    return prod(lead) * node.dtype.bytes_for(last)
