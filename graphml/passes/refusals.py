"""Nodes that a backend has no kernel for, and the error of `strict`.

Knows backends only through `graphml.backend`; nothing of placement.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphml.backend import Backend
from graphml.errors import BackendError
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.passes.cut import constants


def refusals(graph: Graph, backend: Backend) -> list[tuple[Node, str]]:
    """The nodes of a graph ready to lower that the backend has no kernel for, and why.

    Values that depend on weights alone are ignored: they are computed once, before anything runs.
    """
    known = constants(graph)
    refusals = []
    for node in graph.nodes:
        if node.op.family != "leaf" and not node.op.view and node not in known:
            reason = backend.refuses(node)
            if reason is not None:
                refusals.append((node, reason))
    return refusals


def refuse_fallbacks(fallbacks: Sequence[tuple[str, str]]) -> None:
    """Raise the `BackendError` of `strict` that lists (node, reason), unless there are none."""
    if fallbacks:
        shown = "; ".join(f"{name}: {reason}" for name, reason in fallbacks[:20])
        more = f"; and {len(fallbacks) - 20} more" if len(fallbacks) > 20 else ""
        raise BackendError(
            f"strict: {len(fallbacks)} nodes would not run where they are wanted: {shown}{more}"
        )
