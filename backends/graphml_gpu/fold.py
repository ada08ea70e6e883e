"""Values that weights alone decide, worked out in NumPy once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from graphml.ir.graph import Graph
from graphml.ir.interpreter import evaluate
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.ops.leaf import weight_leaf
from graphml_gpu.node_support import value_bytes

_FOLDED_BYTES = 1 << 20
"""Larger ones are made by a kernel where there is one."""


def fold(
    graph: Graph, weights: Mapping[str, Array], refuses: Callable[[Node], str | None]
) -> dict[Node, Array]:
    """Values that weights alone decide, computed once; large ones only where no kernel makes them."""
    folded: dict[Node, Array] = {}
    for node in graph.nodes:
        if node.op.family == "leaf" or node.op.view or node.op.writes is not None or node.type.parts:
            continue
        if refuses(node) is None and value_bytes(node.type) > _FOLDED_BYTES:
            continue
        if all(source.op is weight_leaf or source in folded for source in node.inputs):
            values = {s: folded[s] if s in folded else weights[s.name] for s in node.inputs}
            folded[node] = np.ascontiguousarray(evaluate(node, values))
    return folded
