"""Mistakes at both ends of a model and in its residual stream: factors and caps."""

from __future__ import annotations

from collections.abc import Iterator

from graphml.authoring.mistakes.edit import EditSource, Mistake, Try, changed, embeds, made
from graphml.authoring.mistakes.residual import stream_sums
from graphml.ir.node import Node
from graphml.ir.ops import elementwise


def _embedding(model: EditSource) -> Iterator[Try]:
    wanted = (model.number("embedding_scale"), model.n_embd**0.5, model.number("embedding_multiplier"))
    scaled = [node for node in model.nodes("scale") if embeds(node.inputs[0])]
    now = {float(node.attributes["factor"]) for node in scaled}  # type: ignore[arg-type]
    for factor in model.candidates(now or {1.0}, *wanted, 1.0):

        def change(node: Node, factor: float = factor) -> Node | None:
            if scaled:
                ours = node.op.name == "scale" and embeds(node.inputs[0])
                return changed(node, factor=factor) if ours else None
            return made(elementwise.scale, node, like=node, factor=factor) if embeds(node) else None

        listed = ", ".join(f"{used_factor:g}" for used_factor in now) or "1"
        yield Try(f"embedding times {listed} -> times {factor:g}", change)


def _logits(model: EditSource) -> str:
    return next((node.name for name, node in model.graph.outputs.items() if name == "logits"), "")


def _softcap(model: EditSource) -> Iterator[Try]:
    last, own_cap = _logits(model), model.number("final_logit_softcapping")
    capped = [node for node in model.nodes("scale") if node.name == last and node.inputs[0].op.name == "tanh"]
    if capped:
        yield Try("logits capped -> not capped", lambda node: _uncapped(node) if node.name == last else None)
    for cap in model.candidates({float(node.attributes["factor"]) for node in capped}, own_cap, 30.0, 50.0):  # type: ignore[arg-type]

        def change(node: Node, cap: float = cap) -> Node | None:
            if node.name != last:
                return None
            small = made(elementwise.scale, _uncapped(node) or node, like=node, factor=1 / cap)
            return made(elementwise.scale, made(elementwise.tanh, small, like=node), like=node, factor=cap)

        if cap:
            yield Try(f"cap of logits {'another' if capped else 'none'} -> {cap:g}", change)


def _uncapped(node: Node) -> Node | None:
    """The value before a cap; None if there is no cap."""
    if node.op.name != "scale" or node.inputs[0].op.name != "tanh":
        return None
    small = node.inputs[0].inputs[0]
    return small.inputs[0] if small.op.name == "scale" else small


def _logit_scale(model: EditSource) -> Iterator[Try]:
    last, configured = _logits(model), model.number("logit_scale")
    for factor in [configured, 1 / configured] if configured and configured != 1.0 else []:

        def change(node: Node, factor: float = factor) -> Node | None:
            return made(elementwise.scale, node, like=node, factor=factor) if node.name == last else None

        yield Try(f"logits -> times {factor:g}", change)


def _inverted(model: EditSource) -> Iterator[Try]:
    last = _logits(model)

    def change(node: Node) -> Node | None:
        factor = float(str(node.attributes["factor"])) if node.op.name == "scale" else 0.0
        ours = node.name == last and factor and node.inputs[0].op.name != "tanh"
        return changed(node, factor=1 / factor) if ours else None

    yield Try("logits times a factor -> divided by it", change)


def _residual(model: EditSource) -> Iterator[Try]:
    configured = model.number("residual_scale")
    if not configured or configured == 1.0:
        return

    sums = stream_sums(model.graph)

    def change(node: Node) -> Node | None:
        if node.name not in sums or node.inputs[1].attributes.get("factor", 1.0) != 1.0:
            return None
        part = made(elementwise.scale, node.inputs[1], like=node, factor=configured)
        return made(node.op, node.inputs[0], part, like=node)

    yield Try(f"what is added to the residual stream -> times {configured:g}", change)


MISTAKES = (
    Mistake("embedding-scale", "the embedding is scaled otherwise", _embedding),
    Mistake("residual-scale-forgotten", "what is added to the residual stream has a factor", _residual),
    Mistake("logit-softcap", "logits are capped otherwise", _softcap),
    Mistake("logit-scale-forgotten", "logits have a factor", _logit_scale),
    Mistake("logit-scale-inverted", "logits are divided by their factor, or multiplied with it", _inverted),
)
