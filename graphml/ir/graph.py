"""A graph: nodes in topological order, and the named outputs among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from graphml.ir.node import Node
from graphml.ir.node_lines import encoded, node_line, shown
from graphml.ir.shape import Symbol
from graphml.system.notebook_html import html_table

_MOST_OPS = 6  # that a graph names of itself


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in topological order and the outputs by name.

    Nodes that change a state are kept even if nothing reads them.
    """

    nodes: tuple[Node, ...]
    outputs: Mapping[str, Node]

    def __repr__(self) -> str:
        counts = Counter(node.op.name for node in self.nodes).most_common()
        ops = ", ".join(f"{count} {name}" for name, count in counts[:_MOST_OPS])
        more = f", {len(counts) - _MOST_OPS} more ops" if len(counts) > _MOST_OPS else ""
        outputs = ", ".join(map(repr, islice(self.outputs, _MOST_OPS)))
        return f"Graph({len(self.nodes)} nodes: {ops}{more}; outputs {outputs or 'none'})"

    def __str__(self) -> str:
        """The text form, one node a line, as `graphml graph` writes it; `graphml.ir.text` parses it."""
        outputs = (f"output {encoded(name)} = {shown(node.name)}" for name, node in self.outputs.items())
        return "\n".join([*outputs, *map(node_line, self.nodes)]) + "\n"

    def _repr_html_(self) -> str:
        rows = (
            (node.name, node.op.name, node.type, ", ".join(source.name for source in node.inputs))
            for node in self.nodes
        )
        return html_table(repr(self), ("node", "op", "type", "inputs"), rows)

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
