"""Mistakes in the residual stream and its norms: wrong operands of sums, and superfluous norms."""

from __future__ import annotations

from collections.abc import Iterator

from graphml.authoring.mistakes.edit import (
    EditSource,
    Mistake,
    Places,
    Try,
    computed,
    made,
    nth_of_layers,
    stem,
    tensor_of,
)
from graphml.inspect.dumps.layers import layer_of
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.ops import elementwise
from graphml.ir.shape import bound

NORMS = ("rms_norm", "layer_norm")


def normed_of(node: Node) -> Node | None:
    """The input of a norm, with its weight and bias if any; None for any other node."""
    if node.op.name == "add" and len(node.inputs[1].shape) == 1:
        node = node.inputs[0]
    if node.op.name == "mul" and len(node.inputs[1].shape) == 1:
        node = node.inputs[0]
    return node.inputs[0] if node.op.name in NORMS else None


def norm_ends(graph: Graph) -> list[Node]:
    """The last node of each norm, with its weight and bias."""
    readers = graph.users()
    return [
        node
        for node in graph.nodes
        if (x := normed_of(node)) is not None
        and not any(normed_of(reader) is x for reader in readers[node] if reader.inputs[0] is node)
    ]


def _before_norm(model: EditSource) -> Iterator[Try]:
    """add(norm(x), f(norm(x))) -> add(x, f(norm(x))), and the reverse: all, then each in a layer."""
    for edit, other in (
        ("the normed value -> the one before its norm", _plain),
        ("the value before the norm -> the normed one", _normed),
    ):
        places: dict[int | None, list[str]] = {}
        for node in model.nodes("add"):
            if len(node.inputs[1].shape) == 2 and other(node) is not None:
                places.setdefault(layer_of(node.name), []).append(node.name)
        most = max(map(len, places.values()), default=0)
        for i in range(-1 if most > 1 else 0, most):
            chosen = {name for names in places.values() for name in (names if i < 0 else names[i : i + 1])}

            def change(node: Node, other=other, chosen: set[str] = chosen) -> Node | None:  # type: ignore[no-untyped-def]
                inputs = other(node) if node.name in chosen else None
                return None if inputs is None else made(node.op, *inputs, like=node)

            which = f" (sum {i + 1} of a layer)" if i >= 0 and most > 1 else ""
            yield Try(f"what is added to: {edit}{which}", change)


def _plain(node: Node) -> tuple[Node, Node] | None:
    """The operands of a sum, with a value before its norm."""
    for i in (0, 1):
        x = normed_of(node.inputs[i])
        if x is not None and node.inputs[i] in _sources(node.inputs[1 - i]):
            return (x, node.inputs[1]) if i == 0 else (node.inputs[0], x)
    return None


def _normed(node: Node) -> tuple[Node, Node] | None:
    """The operands of a sum, with a value after the norm that the other is computed from."""
    for i in (0, 1):
        norm = _norm_between(node.inputs[1 - i], node.inputs[i])
        if norm is not None:
            return (norm, node.inputs[1]) if i == 0 else (node.inputs[0], norm)
    return None


def _sources(node: Node) -> list[Node]:
    """All nodes of its layer that a node is computed from, and their inputs."""
    layer = layer_of(node.name)
    sources: dict[Node, None] = {}
    stack = [node]
    while stack:
        source = stack.pop()
        if source in sources or source.op.family == "leaf":
            continue
        sources[source] = None
        if layer_of(source.name) == layer:
            stack.extend(source.inputs)
    return list(sources)


def stream_sums(graph: Graph) -> set[str]:
    """Names of the sums of layers whose first part is the stream: the second is computed from it."""
    sums: set[str] = set()
    for node in graph.nodes:
        if node.op.name == "add" and layer_of(node.name) is not None and len(node.inputs[1].shape) == 2:
            x, part = node.inputs
            if (x.name in sums and layer_of(x.name) == layer_of(node.name)) or x in _sources(part):
                sums.add(node.name)
    return sums


def _norm_between(node: Node, x: Node) -> Node | None:
    """The last node of the norm of x that a node is computed from."""
    norms = [
        source for source in _sources(node) if source.op.name in ("mul", "add") and normed_of(source) is x
    ]
    return norms[-1] if norms and len(x.shape) == 2 else None


def _forgotten(model: EditSource) -> Iterator[Try]:
    """Add the stream to the result of a block on its norm."""
    places = Places.of(model.graph)
    for wanted in ("attn_output", "ffn_down"):

        def change(node: Node, wanted: str = wanted) -> Node | None:
            if places.stem(node) != wanted or layer_of(node.name) is None:
                return None
            for source in _sources(node):
                x = normed_of(source) if len(source.shape) == 2 else None
                if x is not None and bound(x.shape[1]) == model.n_embd and x.type == node.type:
                    return made(elementwise.add, x, node, like=node)
            return None

        yield Try(f"{wanted} alone -> added to the residual stream", change)


def _superfluous(model: EditSource) -> Iterator[Try]:
    """Remove each norm, identified by its weight and the number of its use."""
    groups: dict[str, set[str]] = {}
    uses: dict[tuple[int | None, str], int] = {}
    for node in norm_ends(model.graph):
        weight = _weight_of(node)
        key = layer_of(node.name), weight
        uses[key] = uses.get(key, 0) + 1
        groups.setdefault(f"{weight}, use {uses[key]}", set()).add(node.name)
    for norm, names in groups.items():

        def change(node: Node, names: set[str] = names) -> Node | None:
            x = normed_of(node) if node.name in names else None
            return None if x is None else computed("kept", lambda values: values, x, like=node)

        yield Try(f"{norm} -> no norm", change)


def _weight_of(node: Node) -> str:
    for product in (node.inputs[0], node):
        name = tensor_of(product.inputs[1]) if product.op.name == "mul" else None
        if name is not None:
            return stem(name)
    return "a norm without weight"


def _sums(model: EditSource) -> Iterator[Try]:
    """Remove one of the sums of each layer."""
    sums = [node for node in model.nodes("add") if len(node.inputs[1].shape) == 2]
    for number, names in nth_of_layers(sums).items():
        for i in (0, 1):

            def change(node: Node, names: set[str] = names, i: int = i) -> Node | None:
                if node.name not in names:
                    return None
                return computed("kept", lambda values: values, node.inputs[i], like=node)

            yield Try(f"sum {number} of a layer -> its {'first' if i == 0 else 'second'} part alone", change)


MISTAKES = (
    Mistake("residual-forgotten", "what a block makes is added to the residual stream", _forgotten),
    Mistake("residual-of-normed", "what a block makes is added to the stream before its norm, or behind it",
            _before_norm),
    Mistake("sum-superfluous", "something is not added", _sums),
    Mistake("norm-superfluous", "there is no norm", _superfluous),
)  # fmt: skip
