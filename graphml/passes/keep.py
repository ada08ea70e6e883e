"""Kept values: makes nodes that a caller wants to read outputs, which no fusion may cover."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable

from graphml.errors import UsageError, did_you_mean
from graphml.ir.graph import Graph
from graphml.ir.node import Node


def keep_values(graph: Graph, patterns: Iterable[str]) -> Graph:
    """Make an output `value:NAME` of every node that a name or pattern selects.

    Leaves are not computed and never match. A pattern that matches nothing is a `UsageError`.
    """
    names = {node.name: node for node in graph.nodes if node.op.family != "leaf" and not node.op.is_write}
    kept: dict[str, Node] = {}
    for pattern in patterns:
        hits = [pattern] if pattern in names else fnmatch.filter(names, pattern)
        if not hits:
            raise UsageError(f"keep: no value of the graph is called {pattern!r}.{_instead(pattern, names)}")
        kept |= {f"value:{name}": names[name] for name in hits}
    return Graph(graph.nodes, {**graph.outputs, **kept})


def _instead(name: str, names: Collection[str]) -> str:
    """A hint for a name made by a pass: the nodes that it was made from, else similar names."""
    scope, dot, last = name.rpartition(".")
    parts = [scope + dot + part for part in last.split("+")]
    if len(parts) > 1 and all(part in names for part in parts):
        return f" A pass makes it of several values: keep {' or '.join(map(repr, parts))}"
    if scope in names:
        return f" If a pass makes it of {scope!r}: keep that"
    return did_you_mean(name, names)
