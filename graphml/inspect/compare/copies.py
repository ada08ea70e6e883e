"""Copies between devices as nodes: each part of a placed graph shows the values that it received.

A value before its copy is that of the device that computed it; the node of the copy is computed by the device
that it was copied to. Knows prepared graphs and devices; nothing of how values are judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphml.backend import no_progress
from graphml.compiler.compile import Prepared
from graphml.compiler.multi_device import PartsDevice, lower_parts
from graphml.compiler.partitions import ReadyPart, backends_of, join, share_arenas
from graphml.errors import GraphError
from graphml.inspect.compare.forced import OUTPUT, Lowered, apart, shown
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Array, Attribute
from graphml.ir.ops.layout import columns, reshape
from graphml.ir.ops.leaf import input_leaf
from graphml.ir.shape import Symbol, fixed
from graphml.passes.cut import COPY
from graphml.passes.rewrite import rebuild


@dataclass(frozen=True)
class Copied:
    """A copy between two parts of a graph: the name of the value, and the backends of both parts."""

    value: str
    source: str
    target: str


@dataclass(frozen=True)
class WithCopies:
    """A placed graph with its copies as nodes, and the program that returns all of its values.

    copies: name of a copy's node -> the copy. backends: name of a node -> the backend that computes it.
    """

    graph: Graph
    program: Lowered
    copies: Mapping[str, Copied]
    backends: Mapping[str, str]


def with_copies(prepared: Prepared, device: PartsDevice, weights: Mapping[str, Array]) -> WithCopies:
    """Lower a placed graph with every value kept, in the parts that it was cut into.

    The node of a copy is called `VALUE@BACKEND:PART`.
    """
    assert prepared.placement is not None
    givers: dict[str, str] = {}
    parts: list[ReadyPart] = []
    for number, part in enumerate(prepared.parts):
        graph = _receiving(part.graph, givers, f"@{part.backend}:{number}")
        parts.append(ReadyPart(part.backend, graph, part.plan))
        taken = (name for name in graph.outputs if name.startswith(COPY))
        givers |= {name.removeprefix(COPY): part.backend for name in taken}
    whole, maps = join([part.graph for part in parts], list(prepared.graph.outputs))
    nodes = {node.name: node for node in whole.nodes}
    copies: dict[str, Copied] = {}
    for number, part in enumerate(parts):
        for leaf in part.graph.leaves("input"):
            if leaf in givers:
                name = f"{leaf}@{part.backend}:{number}"
                copies[name] = Copied(nodes[name].inputs[0].name, givers[leaf], part.backend)
    backends = backends_of(parts, maps)
    homes = prepared.placement.states()
    device.settle(whole, prepared.options.place, homes, backends)
    lowered = share_arenas(_observed(whole, parts, maps, device))
    program = lower_parts(device, lowered, homes, weights, no_progress)
    named = {node.name: backend for node, backend in backends.items()}
    return WithCopies(whole, Lowered(device, whole, weights, program), copies, named)


def without_copies(graph: Graph, copies: Mapping[str, Copied]) -> Graph:
    """The graph in which values are read where they are computed."""
    return rebuild(graph, lambda node: node.inputs[0] if node.name in copies else node) if copies else graph


def _receiving(graph: Graph, givers: Mapping[str, str], suffix: str) -> Graph:
    """A part whose nodes read its inputs from earlier parts through a node for each."""
    new: dict[Node, Node] = {}
    order: list[Node] = []
    for node in graph.nodes:
        moved = node.on(tuple(new[source] for source in node.inputs))
        order.append(moved)
        if node.op is input_leaf and node.name in givers:
            moved = _received(moved, node.name + suffix)
            order.append(moved)
        new[node] = moved
    return make_graph(order, {name: new[node] for name, node in graph.outputs.items()})


def _received(node: Node, name: str) -> Node:
    """All columns of an input: a kernel reads the device's memory; a view may be read in main memory."""
    if node.shape and not isinstance(node.shape[-1], Symbol):
        every: dict[str, Attribute] = {"start": 0, "stop": node.shape[-1]}
        return Node(columns, (node,), node.type, name, every, node.source)
    kept = max((i + 1 for i, size in enumerate(node.shape) if isinstance(size, Symbol)), default=0)
    tail = tuple(fixed(size) for size in node.shape[kept:])
    attributes: dict[str, Attribute] = {"tail": tail, "keep": kept}
    return Node(reshape, (node,), node.type, name, attributes, node.source)


def _observed(
    whole: Graph, parts: list[ReadyPart], maps: list[dict[Node, Node]], device: PartsDevice
) -> list[ReadyPart]:
    """The parts with every value that can be shown as an output; see `forced.observed`."""
    left = {node.name for node in shown(whole)}
    ready_parts = []
    for part, new in zip(parts, maps, strict=True):
        outputs = {
            name if name.startswith(COPY) else OUTPUT + name: node
            for name, node in part.graph.outputs.items()
        }
        for node in shown(part.graph):
            name = new[node].name
            if name in left:
                left.remove(name)
                outputs[name] = node
        graph = Graph(part.graph.nodes, outputs)
        plan = apart(graph, device.devices[part.backend])
        ready_parts.append(ReadyPart(part.backend, graph, plan))
    if left:
        raise GraphError(f"observe: no part of the placed graph computes {', '.join(sorted(left))}")
    return ready_parts
