"""Makes the graph of a difference small: the few nodes that matter, with as few rows as show it.

Each trial is a valid graph with less in it; it is kept where it shows a difference of the same kind. Knows
graphs and their leaves; what shows a difference is a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from graphml.errors import GraphmlError
from graphml.fuzz.graphs import DrawnGraph
from graphml.fuzz.oracle import run
from graphml.ir.builder import complete, infer_type
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import LEAVES, input_leaf
from graphml.ir.shape import Symbol
from graphml.ir.verify import verify

TRIALS = 400


def shrink(drawn: DrawnGraph, shows: Callable[[DrawnGraph], bool]) -> DrawnGraph:
    """The smallest graph found that shows it still, in at most `TRIALS` trials."""
    left = TRIALS
    smaller = True
    while smaller and left > 0:
        smaller = False
        for trial in _smaller(drawn):
            left -= 1
            try:
                smaller = len(verify(trial.graph).nodes) > 0 and shows(trial)
            except GraphmlError:
                smaller = False
            if smaller or left <= 0:
                drawn = trial if smaller else drawn
                break
    return drawn


def _smaller(drawn: DrawnGraph) -> Iterator[DrawnGraph]:
    """Graphs with less in them, those with much less first."""
    graph = drawn.graph
    if len(graph.outputs) > 1:
        for name, node in graph.outputs.items():
            yield _with(drawn, make_graph(graph.nodes, {name: node}))
    for node in reversed(graph.nodes):  # a write that nothing reads
        read = node in graph.outputs.values() or any(node in other.inputs for other in graph.nodes)
        if node.op.writes is not None and not read:
            yield _with(
                drawn, Graph(tuple(other for other in graph.nodes if other is not node), graph.outputs)
            )
    computed = [node for node in graph.nodes if node.op not in LEAVES]
    values = _values(drawn)
    for node in computed[len(computed) // 2 :: -1] + computed:
        if node.name in values and node not in graph.outputs.values():
            yield _cut_above(drawn, node, values[node.name])
    for node in reversed(computed):
        for source in node.inputs:
            if source.type == node.type and source.op.name != "state":
                yield _with(drawn, _replaced(graph, node, source))
    used = {node.name for node in graph.nodes}
    if set(drawn.leaves) - used:
        yield replace(drawn, leaves={name: a for name, a in drawn.leaves.items() if name in used})


def _with(drawn: DrawnGraph, graph: Graph) -> DrawnGraph:
    return replace(drawn, graph=graph)


def _values(drawn: DrawnGraph) -> dict[str, Array]:
    """Name -> value of the computed nodes that an input can stand for: rows of numbers."""
    nodes = {
        node.name: node
        for node in drawn.graph.nodes
        if node.op not in LEAVES and node.dtype is F32 and not node.op.is_write and not node.type.parts
        and node.shape and isinstance(node.shape[0], Symbol)
    }  # fmt: skip
    return run(Graph(drawn.graph.nodes, nodes), drawn.arrays())


def _cut_above(drawn: DrawnGraph, node: Node, value: Array) -> DrawnGraph:
    """The value as an input, so that what it was computed from is not needed."""
    leaf = Node(input_leaf, (), node.type, node.name, source=node.source)
    graph = _replaced(drawn.graph, node, leaf)
    return replace(drawn, graph=graph, leaves={**drawn.leaves, node.name: value})


def _replaced(graph: Graph, node: Node, other: Node) -> Graph:
    """The graph with another value in a node's place."""
    new: dict[Node, Node] = {node: other}
    order: dict[Node, None] = {}
    for each in graph.nodes:
        if each is node:
            order[other] = None
            continue
        inputs = tuple(new.get(source, source) for source in each.inputs)
        replaced = each.on(inputs)
        if replaced is not each and each.op not in LEAVES:
            kind = infer_type(each.op, [source.type for source in inputs], complete(each.op, each.attributes))
            replaced = replace(replaced, type=kind)
        new[each] = replaced
        order[replaced] = None
    return make_graph(order, {name: new.get(output, output) for name, output in graph.outputs.items()})
