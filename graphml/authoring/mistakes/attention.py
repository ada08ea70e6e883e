"""Mistakes in attention: its scale, window, cap, sinks and distance penalty, and a forgotten norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graphml.authoring.mistakes.edit import EditSource, Mistake, Try, attribute_tries, changed, leaf
from graphml.inspect.dumps.layers import layer_of
from graphml.ir.builder import complete, infer_type
from graphml.ir.node import Node
from graphml.ir.op import number
from graphml.ir.shape import bound


def _scale(model: EditSource) -> Iterator[Try]:
    wanted: list[float | None] = [model.number("attention.scale")]
    for node in model.nodes("attention"):
        head, heads = bound(node.inputs[0].shape[2]), bound(node.inputs[0].shape[1])
        wanted += [head**-0.5, 1.0, (model.n_embd / heads) ** -0.5, bound(node.shape[2]) ** -0.5]
        wanted += [1 / head, model.n_embd**-0.5, head**0.5]
    scales = model.candidates(model.values("attention", "scale"), *wanted)
    yield from attribute_tries(model, "attention", "scale", scales)


def _windowed(node: Node, window: Callable[[int], int]) -> Node | None:
    layer = layer_of(node.name)
    if node.op.name != "attention" or layer is None:
        return None
    return changed(node, window=window(layer))


def _off_by_one(model: EditSource) -> Iterator[Try]:
    for by in (1, -1):

        def change(node: Node, by: int = by) -> Node | None:
            now = int(number(node.attributes, "window")) if node.op.name == "attention" else 0
            return _windowed(node, lambda layer: now + by) if now > max(0, -by) else None

        listed = ", ".join(f"{window:g}" for window in sorted(model.values("attention", "window")) if window)
        if listed:
            yield Try(f"window {listed} -> {by:+d} token", change)


def _window(model: EditSource) -> Iterator[Try]:
    """The window in all layers, in none, or in the usual patterns."""
    window = model.number("attention.sliding_window")
    used = {int(window) for window in model.values("attention", "window") if window}
    for size in sorted({*used, *([int(window)] if window else [])}):

        def everywhere(node: Node, size: int = size) -> Node | None:
            return _windowed(node, lambda layer: size)

        yield Try(f"window {size} in every layer", everywhere)
        for period in (2, 3, 4, 5, 6, 8):
            for first in (period - 1, 0):

                def change(
                    node: Node, size: int = size, period: int = period, first: int = first
                ) -> Node | None:
                    return _windowed(node, lambda layer: 0 if layer % period == first else size)

                which = "first" if first == 0 else "last"
                yield Try(f"window {size} in all but the {which} of {period} layers", change)
    if used:
        yield Try("no window", lambda node: _windowed(node, lambda layer: 0))


def _softcap(model: EditSource) -> Iterator[Try]:
    wanted = (model.number("attn_logit_softcapping"), 50.0, 30.0, 0.0)
    caps = model.candidates(model.values("attention", "softcap"), *wanted)
    yield from attribute_tries(model, "attention", "softcap", caps)


def _alibi(model: EditSource) -> Iterator[Try]:
    wanted = (model.number("attention.max_alibi_bias"), 8.0, 0.0)
    biases = model.candidates(model.values("attention", "max_bias"), *wanted)
    yield from attribute_tries(model, "attention", "max_bias", biases)


def _sinks(model: EditSource) -> Iterator[Try]:
    def change(node: Node) -> Node | None:
        name = f"blk.{layer_of(node.name)}.attn_sinks.weight"
        if node.op.name != "attention" or len(node.inputs) > 6 or name not in model.tensors:
            return None
        inputs = (*node.inputs, leaf(model, name))
        full = complete(node.op, node.attributes)
        kind = infer_type(node.op, [source.type for source in inputs], full)
        return Node(node.op, inputs, kind, node.name, full, node.source)

    if any(name.endswith("attn_sinks.weight") for name in model.unused):
        yield Try("no sinks -> the file's attn_sinks", change)


def _ahead(model: EditSource) -> Iterator[Try]:
    """Without the lengths of sequences, which attention to later tokens reads last."""

    def change(node: Node) -> Node | None:
        if node.op.name != "attention" or node.attributes["causal"]:
            return None
        full = complete(node.op, {**node.attributes, "causal": True})
        return Node(node.op, node.inputs[:-1], node.type, node.name, full, node.source)

    yield Try("attention to later tokens -> to earlier ones alone", change)


MISTAKES = (
    Mistake("looks-ahead", "no token attends to later ones", _ahead),
    Mistake("attention-sinks-forgotten", "attention has sinks", _sinks),
    Mistake("attention-scale", "scores are scaled otherwise", _scale),
    Mistake("window-off-by-one", "the window is a token longer or shorter", _off_by_one),
    Mistake("window", "other layers see a window", _window),
    Mistake("attention-softcap", "scores are capped otherwise", _softcap),
    Mistake("alibi", "scores are penalised by distance (ALiBi), or are not", _alibi),
)
