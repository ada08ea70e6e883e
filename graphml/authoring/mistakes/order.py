"""Mistakes in order: rows of q and k, parts of a matrix, heads of a group, exchanged tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from graphml.authoring.mistakes.edit import EditSource, Mistake, Places, Try, computed, leaf, made, tensor_of
from graphml.ir.node import Node
from graphml.ir.op import Array
from graphml.ir.shape import bound

Reorder = Callable[[int], Array]  # of a head's width


def _to_neighbours(width: int) -> Array:
    """Order that turns halves in sequence into the pairs (0, w/2), (1, w/2 + 1), ... in sequence."""
    return np.arange(width).reshape(2, -1).T.ravel()


def _to_halves(width: int) -> Array:
    return np.arange(width).reshape(-1, 2).T.ravel()


def _heads(model: EditSource) -> tuple[int, int, int]:
    """Heads of queries, heads of keys, and their width, in the first attention."""
    for node in model.nodes("attention"):
        q, k = node.inputs[:2]
        return bound(q.shape[1]), bound(k.shape[1]), bound(q.shape[2])
    return 0, 0, 0


def _head_rows(model: EditSource) -> Iterator[Try]:
    n_head, n_head_kv, width = _heads(model)
    if width % 2 or not width:
        return
    counts, places = {"attn_q": n_head, "attn_k": n_head_kv}, Places.of(model.graph)
    for which in (("attn_q",), ("attn_k",), ("attn_q", "attn_k")):
        for says, order in (("halves -> neighbours", _to_neighbours), ("neighbours -> halves", _to_halves)):

            def change(node: Node, which: tuple[str, ...] = which, order: Reorder = order) -> Node | None:
                name = places.stem(node)
                if name not in which or bound(node.shape[-1]) != counts[name] * width:
                    return None
                permutation = order(width)

                def moved(x: Array) -> Array:
                    return np.ascontiguousarray(
                        x.reshape(len(x), -1, width)[..., permutation].reshape(x.shape)
                    )

                return computed("reordered", moved, node, like=node)

            yield Try(f"rows of each head of {' and '.join(which)}: {says}", change)


def _fused(model: EditSource) -> Iterator[Try]:
    n_head, n_head_kv, width = _heads(model)
    places = Places.of(model.graph)
    rows = (n_head + 2 * n_head_kv) * width
    if not n_head_kv or not any(name.endswith("attn_qkv.weight") for name in places.last):
        return
    group = n_head // n_head_kv
    grid = np.arange(rows).reshape(n_head_kv, group + 2, width)
    by_head = np.concatenate([part.ravel() for part in (grid[:, :group], grid[:, group], grid[:, group + 1])])
    orders = {"q, k and v of each head -> all q, all k, all v": by_head}
    orders["all q, all k, all v -> q, k and v of each head"] = np.argsort(by_head)
    for says, order in orders.items():

        def change(node: Node, order: Array = order) -> Node | None:
            if places.stem(node) != "attn_qkv" or bound(node.shape[-1]) != rows:
                return None
            return computed("reordered", lambda x: np.ascontiguousarray(x[:, order]), node, like=node)

        yield Try(f"rows of attn_qkv: {says}", change)


def _groups(model: EditSource) -> Iterator[Try]:
    """The key-value head of a query head: neighbours share one, or every n-th does."""
    n_head, n_head_kv, _ = _heads(model)
    if not n_head_kv or n_head == n_head_kv or n_head_kv == 1:
        return
    order = np.arange(n_head).reshape(-1, n_head_kv).T.ravel()
    back = np.argsort(order)

    def change(node: Node) -> Node | None:
        if node.op.name != "attention" or bound(node.shape[1]) != n_head:
            return None
        q = computed("regrouped", lambda x: np.ascontiguousarray(x[:, order]), node.inputs[0], like=node)
        y = Node(
            node.op, (q, *node.inputs[1:]), node.type, f"{node.name}.tried", node.attributes, node.source
        )
        return computed("regrouped", lambda x: np.ascontiguousarray(x[:, back]), y, like=node)

    yield Try("key-value heads: each for neighbouring query heads -> for every n-th", change)


def _taken_for(model: EditSource) -> Iterator[Try]:
    for a, b in (("attn_k", "attn_v"), ("attn_q", "attn_output"), ("attn_norm", "ffn_norm"),
                 ("attn_q_norm", "attn_k_norm"), ("attn_norm", "post_attention_norm")):  # fmt: skip

        def change(node: Node, a: str = a, b: str = b) -> Node | None:
            return _exchanged(model, node, a, b)

        yield Try(f"{a} <-> {b}", change)


def _exchanged(model: EditSource, node: Node, a: str, b: str) -> Node | None:
    """The node with the tensor a in place of b and b in place of a, weights and biases alike."""
    inputs = list(node.inputs)
    for i, source in enumerate(inputs):
        name = tensor_of(source)
        for old, new in ((a, b), (b, a)):
            if node.op.name == "dequantize" or name is None or f".{old}." not in name:
                continue
            other = name.replace(f".{old}.", f".{new}.")
            if other in model.tensors and model.tensors[other].shape == source.shape:
                inputs[i] = leaf(model, other)
                break
    if inputs == list(node.inputs):
        return None
    return Node(node.op, tuple(inputs), node.type, node.name, node.attributes, node.source)


def _transposed(model: EditSource) -> Iterator[Try]:
    stems: dict[str, None] = {}
    for name in Places.of(model.graph).last:
        shape = model.tensors[name].shape
        if len(shape) == 2 and shape[0] == shape[1]:
            stems[name.rpartition(".")[0].split(".", 2)[-1]] = None
    for wanted in stems:

        def change(node: Node, wanted: str = wanted) -> Node | None:
            name = tensor_of(node.inputs[0]) if node.op.name == "mul_mat" else None
            if name is None or name.rpartition(".")[0].split(".", 2)[-1] != wanted:
                return None
            turned = computed("transposed", np.transpose, node.inputs[0], like=node.inputs[0])
            return made(node.op, turned, node.inputs[1], like=node)

        yield Try(f"{wanted} -> its transpose", change)


MISTAKES = (
    Mistake("transposed-weight", "a square matrix is transposed", _transposed),
    Mistake("taken-for-another", "two tensors are taken for each other", _taken_for),
    Mistake("head-permutation", "the rows of each head of q or k are in another order", _head_rows),
    Mistake("qkv-order", "q, k and v are in another order in their common matrix", _fused),
    Mistake("kv-groups", "query heads share key-value heads otherwise", _groups),
)
