"""Mistakes in the feed-forward: its gate, its activation, and its input."""

from __future__ import annotations

from collections.abc import Iterator

from graphml.authoring.mistakes.edit import EditSource, Mistake, Try, made, nth_of_layers
from graphml.inspect.dumps.layers import layer_of
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Op
from graphml.ir.ops import elementwise

ACTIVATIONS: dict[str, Op] = {
    op.name: op
    for op in (elementwise.silu, elementwise.gelu, elementwise.gelu_erf, elementwise.gelu_quick,
               elementwise.relu, elementwise.sigmoid, elementwise.tanh)
}  # fmt: skip


def activations_of(graph: Graph) -> set[str]:
    """Names of the activations of layers, without those of norms, caps or routers."""
    users = graph.users()
    return {
        node.name for node in graph.nodes
        if node.op.name in ACTIVATIONS and layer_of(node.name) is not None
        and not any(user.op.name in ("add", "top_k", "gather", "scale") for user in users[node])
    }  # fmt: skip


def _swapped(model: EditSource) -> Iterator[Try]:
    inside = activations_of(model.graph)
    several = nth_of_layers(node for node in model.graph.nodes if node.name in inside)
    groups = [("", inside)] if inside else []
    groups += [(f" ({number} of a layer)", names) for number, names in several.items() if len(several) > 1]
    for which, names in groups:

        def change(node: Node, names: set[str] = names) -> Node | None:
            if node.op.name != "mul":
                return None
            for gate, up in (node.inputs, node.inputs[::-1]):
                act = gate.inputs[0] if gate.op.name == "sqr" else gate
                if act.op.name in ACTIVATIONS and act.name in names and act.inputs[0].shape == up.shape:
                    other = made(act.op, up, like=act)
                    other = other if act is gate else made(gate.op, other, like=gate)
                    return made(node.op, other, act.inputs[0], like=node)
            return None

        yield Try(f"act(gate) * up -> gate * act(up){which}", change)


def _activation(model: EditSource) -> Iterator[Try]:
    inside = activations_of(model.graph)
    squared = {node.inputs[0].name for node in model.nodes("sqr") if node.inputs[0].op.name == "relu"}
    used = sorted({node.op.name for node in model.graph.nodes if node.name in inside})
    for now in used:
        for name, op in ACTIVATIONS.items():

            def change(node: Node, now: str = now, op: Op = op) -> Node | None:
                if node.op.name != now or node.name not in inside:
                    return None
                return made(op, node.inputs[0], like=node)

            if name != now:
                yield Try(f"{now} -> {name}", change)

        def square(node: Node, now: str = now) -> Node | None:
            if node.op.name != now or node.name not in inside:
                return None
            return made(elementwise.sqr, made(elementwise.relu, node.inputs[0], like=node), like=node)

        yield Try(f"{now} -> relu squared", square)

    def unsquared(node: Node) -> Node | None:
        return node.inputs[0] if node.op.name == "sqr" and node.inputs[0].name in squared else None

    if squared:
        yield Try("relu squared -> relu", unsquared)


def _parallel(model: EditSource) -> Iterator[Try]:
    """The second norm of a layer reads the first one's input, or the sum with attention."""
    first: dict[int, str] = {}
    second: dict[int, str] = {}
    for node in model.graph.nodes:
        layer = layer_of(node.name)
        if layer is None or node.op.name not in ("rms_norm", "layer_norm"):
            continue
        if layer not in first:
            first[layer] = node.inputs[0].name
        elif node.inputs[0].op.name == "add" and layer_of(node.inputs[0].name) == layer:
            second.setdefault(layer, node.name)

    def parallel(node: Node) -> Node | None:
        """Move to the residual before attention: its output rows in the last layer."""
        if node.name not in second.values() or node.op.name not in ("rms_norm", "layer_norm"):
            return None
        before = node.inputs[0].inputs[0] if node.inputs[0].op.name == "add" else None
        return None if before is None else made(node.op, before, like=node, **node.attributes)

    if second:
        yield Try("feed-forward behind attention -> beside it, of the same input", parallel)

    ends = {layer: node for node in model.graph.nodes
            if (layer := layer_of(node.name)) is not None and node.op.name == "add"}  # fmt: skip
    if not second and ends:
        yield Try("feed-forward beside attention -> behind it", _sequential)


def _sequential(node: Node) -> Node | None:
    """add(add(x, attention), ffn(norm(x))): rebuild the feed-forward on a norm of the inner sum."""
    if node.op.name != "add" or node.inputs[0].op.name != "add":
        return None
    inner, ffn = node.inputs
    norms = [norm for norm in _between(ffn, inner.inputs[0]) if norm.op.name in ("rms_norm", "layer_norm")]
    if not norms:
        return None
    again = {norms[0].inputs[0]: inner}
    return made(node.op, inner, _rebuilt(ffn, again), like=node)


def _between(node: Node, start: Node) -> list[Node]:
    """The nodes from `start` to node, without attention."""
    between: dict[Node, None] = {}
    stack = [node]
    while stack:
        ancestor = stack.pop()
        if ancestor in between or ancestor.op.family == "leaf" or ancestor.op.name == "attention":
            continue
        between[ancestor] = None
        stack.extend(source for source in ancestor.inputs if source is not start)
    return list(between)


def _rebuilt(node: Node, new: dict[Node, Node]) -> Node:
    """The node rebuilt with the replacements of `new`."""
    if node in new or not node.inputs:
        return new.get(node, node)
    inputs = tuple(_rebuilt(source, new) for source in node.inputs)
    same = inputs == node.inputs
    new[node] = (
        node if same else Node(node.op, inputs, node.type, f"{node.name}.tried", node.attributes, node.source)
    )
    return new[node]


MISTAKES = (
    Mistake("gate-up-swapped", "gate and up are taken for each other", _swapped),
    Mistake("activation", "the feed-forward has another activation", _activation),
    Mistake("parallel-residual", "attention and feed-forward stand side by side, or do not", _parallel),
)
