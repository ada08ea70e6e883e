"""Puts the decompositions of fused ops back in their place: a graph of plain ops with the same meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from graphml.ir.fused import decomposition
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.passes.rewrite import rebuild


def expand(graph: Graph, only: Callable[[Node], bool] = lambda node: True) -> Graph:
    """The graph without fused ops, or without those of the nodes that `only` names.

    The last plain node keeps the fused one's name, the others add to it.
    """

    def change(node: Node) -> Node | tuple[Node, ...]:
        return _plain_nodes(node) if node.op.decompose is not None and only(node) else node

    return rebuild(graph, change)


def _plain_nodes(node: Node) -> tuple[Node, ...]:
    plain = decomposition(node.op, [source.type for source in node.inputs], node.attributes)
    new: dict[Node, Node] = {
        leaf: node.inputs[int(name.removeprefix("operand_"))] for name, leaf in plain.leaves("input").items()
    }
    result = plain.outputs["result"]
    made = []
    for part in plain.nodes:
        if part in new:
            continue
        name = node.name if part is result else f"{node.name}.{part.name}"
        inputs = tuple(new[source] for source in part.inputs)
        new[part] = replace(part, inputs=inputs, name=name, source=node.source, origin=(node.name,))
        made.append(new[part])
    return tuple(made)
