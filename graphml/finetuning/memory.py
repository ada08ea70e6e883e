"""What a fine-tuning needs in memory, estimated from the graph before the first step.

Knows shapes; measures nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from graphml.ir.graph import Graph
from graphml.ir.ops.leaf import LEAVES
from graphml.ir.shape import resolve

_BYTES = 4  # of a float32
_FOR_LOGITS = 3  # themselves, their softmax, their gradient


def activations(graph: Graph, n_tokens: int, trained: Collection[str]) -> int:
    """Bytes of the values that a step of so many tokens keeps for its gradients.

    These are all that depend on trained weights, and what is made of the logits; states are not counted.
    """
    dims = dict.fromkeys(graph.symbols(), 0) | {"T": n_tokens, "O": n_tokens}
    total = 0
    learning: set[object] = set()
    for node in graph.nodes:
        if node.op in LEAVES:
            if node.name in trained:
                learning.add(node)
            continue
        if any(source in learning for source in node.inputs):
            learning.add(node)
            if node.op.writes is None:
                total += prod(resolve(node.shape, dims)) * _BYTES
    logits = sum(prod(resolve(node.shape, dims)) for node in graph.outputs.values())
    return total + (_FOR_LOGITS - 1) * logits * _BYTES
