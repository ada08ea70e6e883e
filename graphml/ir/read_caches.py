"""Keys and values that one graph has written and another one reads: which they are, and as states.

Knows attention and the states that it reads; nothing of models, or of who reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import integer
from graphml.ir.ops.attention import attention
from graphml.ir.step import StepBuilder, WrittenCache


def caches_by_window(graph: Graph, kept: Iterable[WrittenCache]) -> Mapping[int, WrittenCache]:
    """Window -> what the last attention reads that sees so many tokens, 0 for all; kept: of the graph."""
    written = {cache.keys: cache for cache in kept}
    attentions = [node for node in graph.nodes if node.op is attention and node.inputs[1] in written]
    return {integer(node.attributes, "window"): written[node.inputs[1]] for node in attentions}


def as_states(g: StepBuilder, cache: WrittenCache) -> WrittenCache:
    """What another graph of the same kinds of cells has written, to be read in this one."""
    return replace(cache, keys=_state(g, cache.keys), values=_state(g, cache.values))


def _state(g: StepBuilder, written: Node) -> Node:
    leaf = written.inputs[0]
    return g.state(leaf.name, leaf.dtype, leaf.shape)
