"""Mistakes in norms: their weight, eps and kind, and forgotten ones."""

from __future__ import annotations

from collections.abc import Iterator

from graphml.authoring.mistakes.edit import (
    EditSource,
    Mistake,
    Places,
    Try,
    attribute_tries,
    embeds,
    leaf,
    made,
    product_of,
    tensor_of,
)
from graphml.inspect.dumps.layers import layer_of
from graphml.ir.node import Node
from graphml.ir.ops import elementwise, norm
from graphml.ir.shape import bound, fixed

KINDS = {"rms_norm": norm.layer_norm, "layer_norm": norm.rms_norm}
EPS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3)


def _plus_one(model: EditSource) -> Iterator[Try]:
    for offset in (1.0, -1.0):

        def change(node: Node, offset: float = offset) -> Node | None:
            if node.op.name != "mul" or node.inputs[0].op.name not in KINDS:
                return None
            if tensor_of(node.inputs[1]) is None:
                return _as_in_file(node) if offset < 0 else None
            weight = made(elementwise.scale, node.inputs[1], like=node, factor=1.0, offset=offset)
            return made(node.op, node.inputs[0], weight, like=node)

        yield Try(f"norm * weight -> norm * (weight {'+' if offset > 0 else '-'} 1)", change)


def _as_in_file(node: Node) -> Node | None:
    """norm * (1 + weight) -> norm * weight."""
    weight = node.inputs[1]
    if weight.op.name != "scale" or weight.attributes["offset"] != 1.0 or tensor_of(weight.inputs[0]) is None:
        return None
    return made(node.op, node.inputs[0], weight.inputs[0], like=node)


def _eps(model: EditSource) -> Iterator[Try]:
    configured = [model.number(f"attention.layer_norm_{kind}epsilon") for kind in ("rms_", "")]
    for op in KINDS:
        if model.nodes(op):
            values = model.candidates(model.values(op, "eps"), *configured, *EPS)
            yield from attribute_tries(model, op, "eps", values)


def _kind(model: EditSource) -> Iterator[Try]:
    for name, other in KINDS.items():

        def change(node: Node, name: str = name) -> Node | None:
            if node.op.name != name:
                return None
            return made(KINDS[name], node.inputs[0], like=node, eps=node.attributes["eps"])

        if model.nodes(name):
            yield Try(f"{name} -> {other.name}", change)


def like_others(model: EditSource) -> Node | None:
    """A norm of the graph, as a source of kind and eps."""
    norms = model.nodes(*KINDS)
    return norms[-1] if norms else None


def normed(model: EditSource, x: Node, name: str, like: Node) -> Node:
    """The norm of x with the tensor and its bias, of the graph's kind."""
    y = made(like.op, x, like=x, eps=like.attributes["eps"])
    y = made(elementwise.mul, y, leaf(model, name), like=x)
    bias = name.replace(".weight", ".bias")
    return made(elementwise.add, y, leaf(model, bias), like=x) if bias in model.tensors else y


def _forgotten(model: EditSource) -> Iterator[Try]:
    like, places = like_others(model), Places.of(model.graph)
    if like is None:
        return
    stems = {name.rpartition(".")[0].split(".", 2)[-1] for name in model.unused if "_norm." in name}
    heads = {"attn_q_norm", "attn_k_norm"} & stems
    if heads:
        yield Try(f"no norm -> {' and '.join(sorted(heads))}", _normed_heads(model, like, places))
    behind = {"post_attention_norm": ("attn_output",), "post_ffw_norm": ("ffn_down",),
              "attn_kv_a_norm": ("attn_kv_a_mqa",)}  # fmt: skip
    before = {"attn_sub_norm": "attn_output", "ffn_sub_norm": "ffn_down"}
    for wanted in sorted(stems - heads):
        after, ahead = behind.get(wanted, ()), before.get(wanted)

        def change(
            node: Node, wanted: str = wanted, after: tuple[str, ...] = after, ahead: str | None = ahead
        ) -> Node | None:
            name = f"blk.{layer_of(node.name)}.{wanted}.weight"
            if places.stem(node) in after and name in model.tensors:
                return normed(model, node, name, like)
            product = product_of(node) if node.op.name == "mul_mat" else None
            if ahead and product and f".{ahead}." in product and name in model.tensors:
                return made(node.op, node.inputs[0], normed(model, node.inputs[1], name, like), like=node)
            ends = {"token_embd_norm": "embedding", "output_norm": "logits"}
            if wanted == "token_embd_norm" and embeds(node):
                return normed(model, node, f"{wanted}.weight", like)
            if ends.get(wanted) == "logits" and product in ("output.weight", "token_embd.weight"):
                x = normed(model, node.inputs[1], "output_norm.weight", like)
                return made(node.op, node.inputs[0], x, like=node)
            return None

        yield Try(f"no norm -> {wanted}", change)


def _normed_heads(model: EditSource, like: Node, places: Places):  # type: ignore[no-untyped-def]
    def change(node: Node) -> Node | None:
        whole, split = places.stem(node), node.op.name == "reshape" and places.stem(node.inputs[0])
        projection = whole or split
        name = f"blk.{layer_of(node.name)}.{projection}_norm.weight"
        if projection not in ("attn_q", "attn_k") or name not in model.tensors or name not in model.unused:
            return None
        fits = model.tensors[name].shape[-1] == bound(node.shape[-1]) == fixed(node.shape[-1])
        return normed(model, node, name, like) if fits else None

    return change


def _bias(model: EditSource) -> Iterator[Try]:
    unused = {name for name in model.unused if "norm" in name and name.endswith(".bias")}

    def change(node: Node) -> Node | None:
        name = tensor_of(node.inputs[1]) if node.op.name == "mul" else None
        bias = "" if name is None else name.replace(".weight", ".bias")
        return made(elementwise.add, node, leaf(model, bias), like=node) if bias in unused else None

    if unused:
        yield Try("norms without -> with the file's biases", change)


def _weight(model: EditSource) -> Iterator[Try]:
    users = model.graph.users()
    plain = {
        node.name
        for node in model.nodes(*KINDS)
        if not any(user.op.name == "mul" and user.inputs[0] is node for user in users[node])
    }
    stems = {name.split(".", 2)[-1] if name.startswith("blk.") else name for name in model.unused}
    for wanted in sorted(stem for stem in stems if stem.endswith("norm.weight")):

        def change(node: Node, wanted: str = wanted) -> Node | None:
            layer = layer_of(node.name)
            name = wanted if layer is None else f"blk.{layer}.{wanted}"
            if node.name not in plain or name not in model.unused:
                return None
            weight = leaf(model, name)
            fits = len(weight.shape) == 1 and weight.shape[0] == node.shape[-1]
            return made(elementwise.mul, node, weight, like=node) if fits else None

        if plain:
            yield Try(f"a norm without weight -> {wanted.removesuffix('.weight')}", change)


MISTAKES = (
    Mistake("norm-weight-forgotten", "a norm is not multiplied with the weight of the file", _weight),
    Mistake("norm-forgotten", "a norm of the file is left out", _forgotten),
    Mistake("norm-bias-forgotten", "biases of norms are left out", _bias),
    Mistake(
        "norm-weight-plus-one", "norms multiply with 1 + weight, or the file has that 1 already", _plus_one
    ),
    Mistake("norm-kind", "norms subtract the mean (layer norm), or do not (RMS)", _kind),
    Mistake("norm-eps", "norms have another eps", _eps),
)
