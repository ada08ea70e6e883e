"""Mistakes in a product's input: the value before or after its norm, or a norm on the wrong side."""

from __future__ import annotations

from collections.abc import Iterator

from graphml.authoring.mistakes.edit import EditSource, Mistake, Places, Try, made, stem, tensor_of
from graphml.authoring.mistakes.norms import like_others, normed
from graphml.authoring.mistakes.residual import norm_ends, normed_of
from graphml.inspect.dumps.layers import layer_of
from graphml.ir.node import Node
from graphml.ir.shape import bound

PRODUCTS = ("mul_mat", "mul_mat_id")
# Norms before a block, and prefixes of the products that read them.
BLOCKS = {
    "attn_norm": ("attn_q", "attn_k", "attn_v", "attn_qkv"),
    "ffn_norm": ("ffn_",),
    "attn_norm_2": ("ffn_",),
}
INSIDE = ("ffn_down",)  # products that read values of the block itself


def _product(node: Node) -> str:
    """The stem of a product's tensor, "" for other nodes."""
    name = tensor_of(node.inputs[0]) if node.op.name in PRODUCTS else None
    return "" if name is None else stem(name)


def _with_input(node: Node, x: Node) -> Node:
    return made(node.op, node.inputs[0], x, *node.inputs[2:], like=node, **node.attributes)


def _forgotten(model: EditSource) -> Iterator[Try]:
    """Insert an unused norm at the start of a block, before the products that read the stream."""
    like = like_others(model)
    stems = {stem(name) for name in model.unused if name.endswith(".weight")}
    for wanted, begins in BLOCKS.items():
        if like is None or wanted not in stems:
            continue

        def change(
            node: Node, wanted: str = wanted, begins: tuple[str, ...] = begins, like: Node = like
        ) -> Node | None:
            name = f"blk.{layer_of(node.name)}.{wanted}.weight"
            product = _product(node)
            if not product.startswith(begins) or product.startswith(INSIDE) or name not in model.unused:
                return None
            x = node.inputs[1]
            fits = len(x.shape) == 2 and bound(x.shape[1]) == model.n_embd
            return _with_input(node, normed(model, x, name, like)) if fits else None

        yield Try(f"no norm -> {wanted}", change)


def _other_input(model: EditSource) -> Iterator[Try]:
    """Products that read a value whose norm is in their layer, and those that read the norm."""
    behind: dict[str, Node] = {}
    for node in norm_ends(model.graph):
        x = normed_of(node)
        if x is not None and layer_of(node.name) is not None:
            behind[x.name] = node
    stems = dict.fromkeys(product for node in model.graph.nodes if (product := _product(node)))
    groups: list[tuple[str, ...]] = [(tensor_stem,) for tensor_stem in stems]
    groups += [
        tuple(tensor_stem for tensor_stem in stems if tensor_stem.endswith(end))
        for end in ("_shexp", "_exps")
    ]
    groups += [tuple(tensor_stem for tensor_stem in stems if tensor_stem in ("ffn_gate", "ffn_up"))]
    for group in dict.fromkeys(group for group in groups if group):

        def later(node: Node, group: tuple[str, ...] = group) -> Node | None:
            norm = behind.get(node.inputs[1].name) if _product(node) in group else None
            return None if norm is None else _with_input(node, _renormed(norm, node.inputs[1], node))

        def earlier(node: Node, group: tuple[str, ...] = group) -> Node | None:
            x = normed_of(node.inputs[1]) if _product(node) in group else None
            return None if x is None else _with_input(node, x)

        yield Try(f"{', '.join(group)}: of a value -> of its norm", later)
        yield Try(f"{', '.join(group)}: of a norm -> of the value before it", earlier)


def _moved(model: EditSource) -> Iterator[Try]:
    """A norm before a square product -> after it, and the reverse."""
    places = Places.of(model.graph)
    ends = {node.name for node in norm_ends(model.graph)}

    def behind(node: Node) -> Node | None:
        if places.stem(node) is None or node.op.name != "mul_mat":
            return None
        norm = node.inputs[1]
        x = normed_of(norm)
        if x is None or x.type != node.type:
            return None
        return _renormed(norm, _with_input(node, x), node)

    def before(node: Node) -> Node | None:
        x = normed_of(node) if node.name in ends else None
        if x is None or x.op.name != "mul_mat" or x.inputs[1].type != x.type:
            return None
        return _with_input(x, _renormed(node, x.inputs[1], x))

    yield Try("norm, then the product -> the product, then the norm", behind)
    yield Try("the product, then its norm -> the norm first", before)


def _around(model: EditSource) -> Iterator[Try]:
    """A norm of a sum with the stream -> of what is added, and the reverse."""
    sums = {
        node.name
        for node in norm_ends(model.graph)
        if (total := normed_of(node)) is not None
        and total.op.name == "add"
        and len(total.inputs[1].shape) == 2
        and layer_of(total.name) == layer_of(node.name) is not None
    }

    def within(node: Node) -> Node | None:
        total = normed_of(node) if node.name in sums else None
        if total is None:
            return None
        return made(total.op, total.inputs[0], _renormed(node, total.inputs[1], node), like=total)

    def around(node: Node) -> Node | None:
        if node.op.name != "add" or layer_of(node.name) is None or len(node.inputs[1].shape) != 2:
            return None
        x = normed_of(node.inputs[1])
        return (
            None if x is None else _renormed(node.inputs[1], made(node.op, node.inputs[0], x, like=node), x)
        )

    yield Try("norm of the stream and what is added -> of what is added alone", within)
    yield Try("norm of what is added -> of its sum with the stream", around)


def _renormed(norm: Node, x: Node, like: Node) -> Node:
    """The norm, with its weight and bias, of another value."""
    if norm.op.name in ("mul", "add"):
        return made(norm.op, _renormed(norm.inputs[0], x, like), norm.inputs[1], like=like)
    return made(norm.op, x, like=like, **norm.attributes)


MISTAKES = (
    Mistake("block-norm-forgotten", "attention or feed-forward begins with a norm of the file", _forgotten),
    Mistake("norm-on-other-side", "a norm stands on the other side of a product", _moved),
    Mistake("norm-around-sum", "a norm is of what is added to the stream, or of the sum", _around),
    Mistake("input-before-norm", "a product reads a value before its norm, or behind it", _other_input),
)
