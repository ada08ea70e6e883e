"""Traits that distinguish architectures, from a config.json or from a graph.

Knows graphs; nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from graphml.authoring.mistakes.edit import tensor_of
from graphml.authoring.mistakes.feed_forward import activations_of
from graphml.inspect.dumps.layers import layer_of
from graphml.ir.graph import Graph
from graphml.ir.node import Node

NORMS = ("rms_norm", "layer_norm")


@dataclass(frozen=True)
class Traits:
    """Traits of a decoder. norm, activation: names of the builder; the others: whether it has such a part."""

    norm: str = "rms_norm"
    activation: str = "silu"
    gated: bool = True
    rope: bool = True
    learned_positions: bool = False
    alibi: bool = False
    head_norms: bool = False
    post_norms: bool = False
    parallel: bool = False
    windows: bool = False
    score_cap: bool = False
    logit_cap: bool = False
    embedding_scale: bool = False
    residual_scale: bool = False
    logit_scale: bool = False
    experts: bool = False
    sigmoid_experts: bool = False
    shared_experts: bool = False
    latent: bool = False
    recurrent: bool = False


def differences(mine: Traits, other: Traits) -> list[str]:
    """The names of the traits that differ."""
    return [field.name for field in fields(Traits) if getattr(mine, field.name) != getattr(other, field.name)]


def traits_of(graph: Graph) -> Traits:
    """The traits of a built graph."""
    nodes = graph.nodes
    weights = " ".join(graph.leaves("weight"))
    norms = [node.op.name for node in nodes if node.op.name in NORMS]
    active = activations_of(graph)
    squared = any(node.op.name == "sqr" and node.inputs[0].op.name == "relu" for node in nodes)
    kinds = sorted({node.op.name for node in nodes if node.name in active})
    attention = [node for node in nodes if node.op.name == "attention"]
    logits = graph.outputs["logits"]
    routers = [
        node
        for node in nodes
        if node.op.name == "mul_mat" and "ffn_gate_inp" in str(tensor_of(node.inputs[0]))
    ]
    users = graph.users()
    return Traits(
        norm=max(NORMS, key=norms.count),
        activation="relu_squared" if squared else kinds[0] if kinds else "",
        gated=any(_gates(node, active) for node in nodes),
        rope=any(node.op.name == "rope" for node in nodes),
        learned_positions=any(
            node.op.name == "get_rows" and node.inputs[1].name == "positions" for node in nodes
        ),
        alibi=any(node.attributes["max_bias"] for node in attention),
        head_norms=any(node.op.name in NORMS and len(node.shape) == 3 for node in nodes),
        post_norms="post_" in weights,
        parallel=_parallel(graph),
        windows=any(node.attributes["window"] for node in attention),
        score_cap=any(node.attributes["softcap"] for node in attention),
        logit_cap=logits.op.name == "scale" and logits.inputs[0].op.name == "tanh",
        embedding_scale=any(node.op.name == "scale" and node.inputs[0].name == "embedding" for node in nodes),
        residual_scale=any(_scaled_part(node) for node in nodes),
        logit_scale=logits.op.name == "scale" and logits.inputs[0].op.name != "tanh",
        experts=bool(routers),
        sigmoid_experts=any(user.op.name == "sigmoid" for node in routers for user in users[node]),
        shared_experts="_shexp" in weights,
        latent="attn_kv_a_mqa" in weights,
        recurrent=any(node.op.recurrent for node in nodes),
    )


def _gates(node: Node, active: set[str]) -> bool:
    plain = [source.inputs[0] if source.op.name == "sqr" else source for source in node.inputs]
    return node.op.name == "mul" and any(source.name in active for source in plain)


def _scaled_part(node: Node) -> bool:
    inside = layer_of(node.name) is not None and node.op.name == "add"
    return inside and any(
        source.op.name == "scale" and layer_of(source.name) is not None for source in node.inputs
    )


def _parallel(graph: Graph) -> bool:
    """Whether the first feed-forward has the same input as attention."""
    for node in graph.nodes:
        name = str(tensor_of(node.inputs[0])) if node.op.name == "mul_mat" else ""
        if not name.startswith("blk.0.ffn_"):
            continue
        stack, seen = [node.inputs[1]], set[Node]()
        while stack:
            ancestor = stack.pop()
            if ancestor.op.name == "attention":
                return False
            if ancestor not in seen and ancestor.op.family != "leaf":
                seen.add(ancestor)
                stack.extend(ancestor.inputs)
        return True
    return False
