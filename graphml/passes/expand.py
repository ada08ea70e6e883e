"""Replaces fused ops by their decompositions: a graph of plain ops with the same meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from graphml.ir.fused import decomposition, results
from graphml.ir.graph import Graph, make_graph
from graphml.ir.node import Node
from graphml.ir.op import integer
from graphml.ir.ops.layout import part


def expand(graph: Graph, only: Callable[[Node], bool] = lambda node: True) -> Graph:
    """The graph without fused ops, or without those of the nodes that `only` selects.

    The plain node that computes a result keeps the name of the fused node, or of the `part` that reads it;
    the names of the others begin with the fused node's name.
    """
    new: dict[Node, Node] = {}
    plain_results: dict[Node, tuple[Node, ...]] = {}  # the plain results of a fused node with several
    order: dict[Node, None] = {}
    names = {
        (node.inputs[0], integer(node.attributes, "index")): node.name
        for node in graph.nodes
        if node.op is part
    }
    for node in graph.nodes:
        inputs = tuple(new.get(source, source) for source in node.inputs)
        if node.op is part and node.inputs[0] in plain_results:
            new[node] = plain_results[node.inputs[0]][integer(node.attributes, "index")]
        elif node.op.decompose is not None and only(node):
            called = {i: name for (fused, i), name in names.items() if fused is node}
            plain, inner_results = _plain_nodes(node, inputs, called)
            order.update(dict.fromkeys(plain))
            if node.type.parts:
                plain_results[node] = inner_results
            else:
                new[node] = inner_results[0]
        else:
            new[node] = node.on(inputs)
            order.setdefault(new[node])
    return make_graph(order, {name: new[node] for name, node in graph.outputs.items()})


def _plain_nodes(
    node: Node, inputs: tuple[Node, ...], called: Mapping[int, str]
) -> tuple[list[Node], tuple[Node, ...]]:
    """The plain nodes on the replaced inputs, and the results among them; called: names of results."""
    plain = decomposition(node.op, [source.type for source in node.inputs], node.attributes)
    new: dict[Node, Node] = {
        leaf: inputs[int(name.removeprefix("operand_"))] for name, leaf in plain.leaves("input").items()
    }
    single = {} if node.type.parts else {0: node.name}
    names = {result: {**single, **called}.get(i) for i, result in enumerate(results(plain))}
    nodes = []
    for inner in plain.nodes:
        if inner in new:
            continue
        name = names.get(inner) or f"{node.name}.{inner.name}"
        operands = tuple(new[source] for source in inner.inputs)
        new[inner] = replace(inner, inputs=operands, name=name, source=node.source, origin=(node.name,))
        nodes.append(new[inner])
    return nodes, tuple(new[result] for result in results(plain))
