"""What steps take on one thread, estimated from bytes and operations, and how threads share them.

Knows nodes and their sizes; nothing of kernels or threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphml.ir.node import Node
from graphml.ir.shape import Symbol
from graphml.ir.work import sizes_at, work
from graphml_cpu.runtime.shares import ALL_SHARE, Shares, shares
from graphml_cpu.sizes import value_bytes

# Of one thread, between what it reads from the memory and from its caches, and of products in int8.
_BYTES_PER_NS = 12.0
_OPERATIONS_PER_NS = 200.0
# Tokens before a step's own: attention is shared as over so many at least.
_PAST = 1024


def cost_ns(node: Node) -> float:
    """Nanoseconds of one thread for a node at the most rows that its program has."""
    shapes = [node.shape, *(source.shape for source in node.inputs)]
    sizes = {dim.name: dim.bound for shape in shapes for dim in shape if isinstance(dim, Symbol)}
    cost = work(node, sizes_at({"T": sizes.get("T", 1)}, _PAST))
    written = 0 if node.op.is_write else value_bytes(node.type)
    return max((cost.n_bytes + written) / _BYTES_PER_NS, cost.flops / _OPERATIONS_PER_NS)


def shares_by_cost(steps: Sequence[tuple[Node, bool]], after: Sequence[bool], n_threads: int) -> list[Shares]:
    """How each step is shared. steps: each with whether all run it whole; after: where barriers are."""
    if n_threads <= ALL_SHARE:
        return shares([None] * len(steps), n_threads)
    dealt: list[Shares] = []
    costs: list[float | None] = []
    for (node, alone), barrier in zip(steps, after, strict=True):
        costs.append(None if alone else cost_ns(node))
        if barrier:
            dealt += shares(costs, n_threads)
            costs = []
    return dealt + shares(costs, n_threads)
