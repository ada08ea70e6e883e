"""Which single rows of a graph every thread computes for itself, into a copy of its own, to save a barrier.

A thread that has missed such a row, asleep or without its core, can take no part where it is read, nor
in what others make of it in turn. So a row is shared where a thread would be left out of too many steps,
and where NumPy or the caller reads it. Knows nodes, their kernel calls and their offsets in a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from graphml.backend import Plan
from graphml.backend.node_values import viewed
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml_cpu.lowering.step import KernelCall
from graphml_cpu.node_support import CpuNodeSupport

# Shared steps, one behind another, for which a thread that came late to a row may be left out.
_MOST_STEPS = 8

Part: TypeAlias = Sequence[tuple[Node, KernelCall]] | Node
"""Kernel calls that are walked as one tape, with their nodes; or a node that runs in NumPy between two."""


def own_rows(graph: Graph, plan: Plan, parts: Sequence[Part], support: CpuNodeSupport) -> frozenset[Node]:
    """The nodes of which each thread has a copy, for which the plan has room. parts: as the program runs."""
    steps = [step for part in parts if not isinstance(part, Node) for step in part]
    cheap = dict.fromkeys(node for node, _ in steps if support.replicable(node))
    shared = {node for node, call in steps if call.split or node not in cheap}
    times, last_reads = _times(graph, shared)
    outside = _read_outside(graph, parts)
    begins: dict[Node, int] = {}
    for node in cheap:
        sources = [viewed(source) for source in node.inputs]
        begin = min((begins[source] for source in sources if source in begins), default=times[node])
        # In the place of a shared value the first thread's copy would be written while others read it.
        replaces = any(
            plan.offsets.get(source) == plan.offsets[node] for source in sources if source not in begins
        )
        if node not in outside and not replaces and last_reads.get(node, begin) - begin <= _MOST_STEPS:
            begins[node] = begin
    return frozenset(begins)


def _times(graph: Graph, shared: set[Node]) -> tuple[dict[Node, int], dict[Node, int]]:
    """When every node is computed, and when it is read last.

    A time is how many shared steps, each of which needs the one before, have been taken in the graph's order.
    """
    depths: dict[Node, int] = {}
    times: dict[Node, int] = {}
    last_reads: dict[Node, int] = {}
    now = 0
    for node in graph.nodes:
        if node.op.view:
            continue
        sources = [viewed(source) for source in node.inputs]
        depths[node] = max((depths[source] for source in sources), default=0) + (node in shared)
        times[node] = now = max(now, depths[node])
        last_reads |= dict.fromkeys(sources, now)
    return times, last_reads


def _read_outside(graph: Graph, parts: Sequence[Part]) -> set[Node]:
    """What the caller gets, and what is read in another part than the one that makes it."""
    home: dict[Node, int] = {}
    for number, part in enumerate(parts):
        home |= dict.fromkeys([part] if isinstance(part, Node) else [node for node, _ in part], number)
    outside = {viewed(node) for node in graph.outputs.values()}
    for node, number in home.items():
        outside |= {source for source in map(viewed, node.inputs) if home.get(source, number) != number}
    return outside
