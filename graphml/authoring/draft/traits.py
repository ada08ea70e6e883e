"""Traits that distinguish architectures, from a config.json or from a graph; the known one nearest to some.

Knows graphs, and architectures through discovery; imports none by name.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from graphml.authoring.mistakes.edit import tensor_of
from graphml.authoring.mistakes.feed_forward import activations_of
from graphml.errors import GraphmlError
from graphml.inspect.dumps.layers import layer_of
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading import discovery
from graphml.loading.architecture import Architecture, Keys, SampleModel, Tensors
from graphml.weights import Metadata, Tensor
from graphml.weights.metadata import stored

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


def sample_graph(architecture: Architecture, model: SampleModel, name: str) -> Graph:
    """The graph of a sample, for steps of one token; name: the architecture in its metadata."""
    keys = {key: stored(value) for key, value in model.metadata.items()}
    config = architecture.read(Keys(Metadata(Path(model.name), keys), name))
    empty = np.zeros(0, np.uint8)
    tensors = {key: Tensor(key, "f32", shape, empty) for key, shape in model.tensors.items()}
    g = Builder(1, 1)
    return g.finish(logits=architecture.build(g, config, Tensors(g, tensors)))


def traits_known(name: str) -> list[Traits]:
    """The traits of a known architecture's samples; none for a sample that cannot be built."""
    return list(_traits(discovery.architecture(name), name))


@functools.cache  # every draft compares with each of them
def _traits(architecture: Architecture, name: str) -> tuple[Traits, ...]:
    traits = []
    for model in architecture.sample(name) if architecture.sample else ():
        try:
            traits.append(traits_of(sample_graph(architecture, model, name)))
        except (GraphmlError, KeyError):
            continue
    return tuple(traits)


def nearest(wanted: Traits, preferred: str | None = None) -> tuple[str, list[str]]:
    """The architecture whose sample differs least, `preferred` of equals, and the differences."""
    best: tuple[int, bool, str, list[str]] | None = None
    for name in discovery.architecture_names():
        for traits in traits_known(name):
            apart = differences(wanted, traits)
            candidate = (len(apart), name != preferred, name, apart)
            best = candidate if best is None else min(best, candidate)
    assert best is not None, "no architecture is installed"
    return best[2], best[3]
