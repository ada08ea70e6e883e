"""Work of a node at given sizes: the bytes that it reads and the operations of its products.

Knows ops and shapes; nothing of kernels, time or storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from graphml.ir.cell_groups import cells_dimension
from graphml.ir.cells import BLOCK_SIZE
from graphml.ir.fused import decomposition
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import integer
from graphml.ir.ops.attention import causal, first_seen
from graphml.ir.shape import Shape, Symbol

Dims = Mapping[str, int]


@dataclass(frozen=True)
class Work:
    """Bytes read (weights and values) and floating-point operations of products: two per multiply-add."""

    n_bytes: int = 0
    flops: int = 0


NO_WORK = Work()


def sizes_at(dims: Dims, past: int) -> dict[str, int]:
    """The dims of a step, limited to the used cells of the cache.

    dims: of the program; past: tokens of the sequence before this step.
    """
    used = past + dims.get("T", 1)
    blocks = -(-used // BLOCK_SIZE)
    return {**dims, "C": min(dims.get("C", used), used), "B": min(dims.get("B", blocks), blocks)}


def work(node: Node, sizes: Dims) -> Work:
    """The work of one node; sizes: from `sizes_at`."""
    if node.op.view or node.op.family == "leaf":
        return NO_WORK
    if node.op.decompose is None:
        read = sum(_read(node, i, sizes) for i in range(len(node.inputs)))
        return Work(read, _flops(node, sizes))
    plain = decomposition(node.op, [source.type for source in node.inputs], node.attributes)
    users = plain.users()
    operands = plain.leaves("input")
    n_bytes = 0
    for i, source in enumerate(node.inputs):
        operand = operands.get(f"operand_{i}")
        if operand is not None:
            n_bytes += int(_part_read(operand, users, sizes) * _n_bytes(source, source.shape, sizes))
    return Work(n_bytes, sum(_flops(part, sizes) for part in plain.nodes))


def step_work(graph: Graph, count: int, past: int, outputs: int = 1) -> Work:
    """What a step of so many tokens, behind `past` others of its sequence, reads and computes.

    outputs: sequences, each with a row of output.
    """
    sizes = sizes_at({"T": count, "O": outputs, "S": outputs}, past)
    return total([work(node, sizes) for node in graph.nodes])


def products(node: Node) -> list[Node]:
    """The products that a node is or contains: `mul_mat` and `mul_mat_id`."""
    return [part for part in plain_nodes(node) if part.op.name in ("mul_mat", "mul_mat_id")]


def plain_nodes(node: Node) -> tuple[Node, ...]:
    """The node itself, or the plain nodes of a fused one's decomposition."""
    if node.op.decompose is None:
        return (node,)
    graph: Graph = decomposition(node.op, [source.type for source in node.inputs], node.attributes)
    return tuple(part for part in graph.nodes if part.op.family != "leaf")


def _sizes(shape: Shape, sizes: Dims) -> tuple[int, ...]:
    return tuple(
        min(sizes.get("C" if cells_dimension(dim.name) else dim.name, dim.bound), dim.bound)
        if isinstance(dim, Symbol)
        else dim
        for dim in shape
    )


def _n_bytes(node: Node, shape: Shape, sizes: Dims) -> int:
    *lead, last = _sizes(shape, sizes) or (1,)
    kind = node.dtype
    return prod(lead) * (-(-last // kind.block_elements) * kind.block_bytes)


def _read(node: Node, index: int, sizes: Dims) -> int:
    source = node.inputs[index]
    return int(_part(node, index, sizes) * _n_bytes(source, source.shape, _window(node, sizes)))


def _window(node: Node, sizes: Dims) -> Dims:
    """The sizes, limited to the window or chunk of attention."""
    if node.op.name != "attention":
        return sizes
    first = max(0, sizes["C"] - sizes.get("T", 1))
    return {**sizes, "C": sizes["C"] - first_seen(first, node.attributes)}


def _part(node: Node, index: int, sizes: Dims) -> float:
    """The share of an input that a plain node reads: gathered rows, used experts, or all."""
    if node.op.is_write and node.op.writes == index:
        return 0.0
    if index == 0 and node.op.name == "get_rows":
        return min(1.0, _rows(node, sizes) / max(_rows(node.inputs[0], sizes), 1))
    if index == 0 and node.op.name == "mul_mat_id":
        return min(1.0, _rows(node, sizes) / max(_sizes(node.inputs[0].shape, sizes)[0], 1))
    return 1.0


def _rows(node: Node, sizes: Dims) -> int:
    return prod(_sizes(node.shape, sizes)[:-1])


def _part_read(operand: Node, users: Mapping[Node, list[Node]], sizes: Dims) -> float:
    """The share of an operand that the parts of a fused op read: the largest of theirs."""
    shares = [0.0]
    for user in users[operand]:
        if user.op.view or user.op.name == "dequantize":
            shares.append(_part_read(user, users, sizes))
        else:
            shares.append(_part(user, user.inputs.index(operand), sizes))
    return max(shares)


def _flops(node: Node, sizes: Dims) -> int:
    if node.op.name in ("mul_mat", "mul_mat_batch", "mul_mat_id"):
        return 2 * prod(_sizes(node.shape, sizes)) * _sizes(node.inputs[0].shape, sizes)[-1]
    if node.op.name == "attention":
        query, keys, values = (_sizes(source.shape, sizes) for source in node.inputs[:3])
        return 2 * query[1] * (keys[-1] + values[-1]) * _pairs(node, sizes)
    return 0


def _pairs(node: Node, sizes: Dims) -> int:
    """Pairs of a token and one that it attends to: itself and those before it within the window.

    Also those after it, unless attention is causal.
    """
    count, used = sizes.get("T", 1), sizes["C"]
    window = integer(node.attributes, "window")
    if not causal(node.attributes):
        return count * min(window or used, used)
    return sum(at + 1 - first_seen(at, node.attributes) for at in range(used - count, used))


def total(parts: list[Work]) -> Work:
    """The sum."""
    return Work(sum(part.n_bytes for part in parts), sum(part.flops for part in parts))
