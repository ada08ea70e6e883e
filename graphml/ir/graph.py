"""A graph: nodes in topological order, and the named outputs among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphml.ir.node import Node
from graphml.ir.shape import Symbol


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in topological order and the outputs by name.

    Nodes that change a state are kept even if nothing reads them.
    """

    nodes: tuple[Node, ...]
    outputs: Mapping[str, Node]

    def leaves(self, kind: str) -> dict[str, Node]:
        """Name -> node of the leaves of one kind: `input`, `weight` or `state`."""
        return {node.name: node for node in self.nodes if node.op.name == kind}

    def users(self) -> dict[Node, list[Node]]:
        """For every node the nodes that read it, once per reading."""
        readers: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for source in node.inputs:
                readers[source].append(node)
        return readers

    def symbols(self) -> dict[str, Symbol]:
        """Name -> symbol of every symbolic dimension."""
        symbols = {}
        for node in self.nodes:
            for dim in node.shape:
                if isinstance(dim, Symbol):
                    symbols[dim.name] = dim
        return symbols

    def node(self, name: str) -> Node:
        """The node called `name`; `KeyError` if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)


def make_graph(nodes: Iterable[Node], outputs: Mapping[str, Node]) -> Graph:
    """The graph of those `nodes` (given in a runnable order) that the outputs need or that change a state."""
    ordered = tuple(nodes)
    needed = set(outputs.values())
    for node in reversed(ordered):
        if node in needed or node.op.writes is not None:
            needed.add(node)
            needed.update(node.inputs)
    return Graph(tuple([node for node in ordered if node in needed]), dict(outputs))
