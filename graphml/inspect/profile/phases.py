"""Phases of nodes in a step, and kinds of layers; derived from the dependencies between nodes.

Names only determine the layer (`layers.3.`). Knows graphs; nothing of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphml.inspect.dumps.layers import layer_of
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.ops.layout import maker
from graphml.ir.work import plain_nodes, products

TOKENISATION, EMBEDDING, QKV, ATTENTION = "tokenisation", "embedding", "QKV", "attention"
FEED_FORWARD, OUTPUT, SAMPLING = "feed-forward", "output projection", "sampling"
DETOKENISATION, OTHER = "detokenisation", "other"
PHASES = (
    TOKENISATION, EMBEDDING, QKV, ATTENTION, FEED_FORWARD, OUTPUT, SAMPLING, DETOKENISATION, OTHER,
)  # fmt: skip
"""The phases of ZigLlama's profiler, in its order."""

# Ops of any other family mix tokens: attention, recurrences, convolutions.
_OF_ONE_TOKEN = frozenset({"elementwise", "index", "layout", "leaf", "linear", "norm", "position", "reduce"})
_MIXERS = {"attention": "attention", "recurrent": "recurrence"}


@dataclass(frozen=True)
class NodePlace:
    """The place of a node in the model: its layer (None: before or after all layers) and its phase."""

    layer: int | None
    phase: str


def places(graph: Graph) -> dict[str, NodePlace]:
    """Name -> place of every node that computes something.

    QKV: the nodes of a layer that attention depends on, up to the last products before it. Attention: the
    rest of these (rotary positions, the cache), attention itself, and the nodes after it up to the output
    projection's product. Feed-forward: all other nodes of the layer, and layers without attention or
    recurrence. Outside the layers: nodes that depend on layers are the output projection; nodes that depend
    on the tokens alone, the embedding; tables of positions belong to attention.
    """
    place_of: dict[str, NodePlace] = {}
    layers: dict[int, list[Node]] = {}
    outside = []
    for node in graph.nodes:
        layer = layer_of(node.name)
        if node.op.family == "leaf":
            continue
        if layer is None:
            outside.append(node)
        else:
            layers.setdefault(layer, []).append(node)
    for layer, members in layers.items():
        place_of |= {name: NodePlace(layer, phase) for name, phase in _layer_phases(members).items()}
    after = _dependent(graph.nodes, {node for members in layers.values() for node in members})
    on_tokens = _dependent(
        graph.nodes, {n for n in graph.nodes if n.op.family == "leaf" and n.name == "tokens"}
    )
    if not layers:
        after = _dependent(graph.nodes, {node for node in outside if products(node)})
    for node in outside:
        phase = OUTPUT if node in after else EMBEDDING if node in on_tokens else ATTENTION
        place_of[node.name] = NodePlace(None, phase)
    return place_of


def kinds(graph: Graph) -> dict[int, str]:
    """Layer -> its kind: "attention (window 512) + experts", "recurrence (ssm_conv, ssm_scan)".

    Ops that mix tokens are named after their family. Parentheses contain the distinguishing facts: ops other
    than plain attention, and the window.
    """
    layers: dict[int, list[Node]] = {}
    for node in graph.nodes:
        layer = layer_of(node.name)
        if layer is not None and node.op.family != "leaf":
            layers.setdefault(layer, []).append(node)
    kind_of = {}
    for layer, members in layers.items():
        phases = _layer_phases(members).values()
        parts = _mixer_names(members)
        experts = any(_of_experts(node) for node in members)
        if experts or FEED_FORWARD in phases:
            parts.append("experts" if experts else "feed-forward")
        kind_of[layer] = " + ".join(parts)
    return kind_of


def _mixer_names(members: Iterable[Node]) -> list[str]:
    """One name for each family of ops that mix tokens, in the layer's order."""
    names: dict[str, dict[str, None]] = {}
    for node in members:
        for part in plain_nodes(node):
            if part.op.family in _OF_ONE_TOKEN:
                continue
            name = _MIXERS.get(part.op.family, part.op.family)
            traits = names.setdefault(name, {})
            if part.op.name != name:
                traits[part.op.name] = None
            for reach in ("window", "chunk"):
                if part.attributes.get(reach):
                    traits[f"{reach} {part.attributes[reach]}"] = None
    return [f"{name} ({', '.join(traits)})" if traits else name for name, traits in names.items()]


def _of_experts(node: Node) -> bool:
    """Whether it has products with matrices chosen for each token; those of heads are not chosen."""
    if not any(part.op.name == "mul_mat_id" for part in products(node)):
        return False
    return all(maker(source).op.name != "column_numbers" for source in node.inputs)


def _mixes(node: Node) -> bool:
    return any(part.op.family not in _OF_ONE_TOKEN for part in plain_nodes(node))


def _layer_phases(members: list[Node]) -> dict[str, str]:
    inside = set(members)
    mixers = [node for node in members if _mixes(node)]
    still_attention = _until_product(members, mixers)
    # A gate of the attention's result is computed like a query.
    roots = [node for node in still_attention if not products(node)]
    before = _needed(inside, roots) - still_attention
    qkv = _needed(inside, [node for node in before if products(maker(node))])
    phases = {}
    for node in members:
        if node in still_attention:
            phases[node.name] = ATTENTION
        elif node in before:
            phases[node.name] = QKV if node in qkv else ATTENTION
        else:
            phases[node.name] = FEED_FORWARD
    return phases


def _until_product(members: list[Node], mixers: list[Node]) -> set[Node]:
    """The mixers and the nodes after them, up to and including the next product."""
    reached = set(mixers)
    still_open = set(mixers)
    for node in members:
        if node not in reached and any(source in still_open for source in node.inputs):
            reached.add(node)
            if not products(node):
                still_open.add(node)
    return reached


def _needed(inside: set[Node], roots: Iterable[Node]) -> set[Node]:
    """The roots and all within the layer that they depend on."""
    needed: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in inside and node not in needed:
            needed.add(node)
            stack.extend(node.inputs)
    return needed


def _dependent(nodes: Iterable[Node], on: set[Node]) -> set[Node]:
    """The nodes `on` and all that depend on them."""
    dependent = set(on)
    for node in nodes:
        if any(source in dependent for source in node.inputs):
            dependent.add(node)
    return dependent


def place_of(node: Node, known: Mapping[str, NodePlace]) -> NodePlace:
    """The place of a node that ran: its own, or that of the nodes it was made from; else "other"."""
    for name in (node.name, *node.origin):
        if name in known:
            return known[name]
    return NodePlace(layer_of(node.name), OTHER)
