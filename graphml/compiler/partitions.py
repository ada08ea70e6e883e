"""The parts of a graph for several devices: their plans, which share an arena, and the graph joined again.

Knows graphs and plans; nothing of devices and programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphml.backend import Arena, Plan
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.passes.cut import COPY, constants


@dataclass(frozen=True)
class ReadyPart:
    """A part after its passes: the graph that its device lowers, and its memory plan."""

    backend: str
    graph: Graph
    plan: Plan


def arenas(parts: Sequence[ReadyPart]) -> dict[str, tuple[int, int]]:
    """Backend -> (peak, lower bound) in bytes of the arena shared by its parts, which never run at once."""
    sizes: dict[str, tuple[int, int]] = {}
    for part in parts:
        peak, bound = sizes.get(part.backend, (0, 0))
        sizes[part.backend] = max(peak, part.plan.peak), max(bound, part.plan.lower_bound)
    return sizes


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
    backends: dict[Node, str] = {}
    for part, new in zip(parts, nodes, strict=True):
        for node in part.graph.nodes:
            if node.op.name not in ("input", "weight"):
                backends.setdefault(new[node], part.backend)
    return backends


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
    output_nodes: dict[str, Node] = {}
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
                inputs = tuple([new[source] for source in node.inputs])
                new[node] = Node(node.op, inputs, node.type, name, node.attributes, node.source, node.origin)
                by_name[name] = new[node]
                order.append(new[node])
            if node.op.is_write:
                written[_leaf(node).name] = new[node]
        crossed |= {name.removeprefix(COPY): new[node] for name, node in graph.outputs.items()}
        output_nodes |= {name: new[node] for name, node in graph.outputs.items() if not name.startswith(COPY)}
        maps.append(new)
    return make_graph(order, {name: output_nodes[name] for name in outputs}), maps


def _leaf(node: Node) -> Node:
    while node.op.name != "state":
        node = node.inputs[node.op.writes or 0]
    return node
