"""Qwen3-Next (Qwen Team 2025, "Qwen3-Next"): three delta nets to one gated attention, and many experts.

Letters as in `_delta_net`, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _ahead, _delta_net, llama, qwen2moe
from graphml_models._delta_net import GATED_HEADS, KEYS, TENSORS, DeltaNet, attention, delta_net
from graphml_models._hybrid import hybrid
from graphml_models._routing import Routing, choose
from graphml_models._samples import shared_expert


@dataclass(frozen=True)
class Config(_delta_net.Config):
    """And how experts are chosen."""

    routing: Routing

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _delta_net.Config.read(keys)
        return cls(**vars(known), routing=replace(Routing.read(keys), normalise=True, scaled=True))


def mixer(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention or a delta net, before the output projection."""
    if config.attends[layer.index]:
        return attention(g, config, layer, table, x_TD)
    ba_TGE = g.heads(
        layer.linear(x_TD, "ssm_ba", "beta_alpha", rows=2 * config.net.n_head), config.net.n_group
    )
    half = fixed(ba_TGE.shape[2]) // 2
    beta_TN, alpha_TN = (g.flatten(g.columns(ba_TGE, i * half, (i + 1) * half)) for i in range(2))
    return delta_net(
        g, config, layer, (*channels(g, config.net, layer, x_TD), beta_TN, alpha_TN), grouped=True
    )


def channels(g: Builder, net: DeltaNet, layer: Layer, x_TD: Node) -> tuple[Node, Node]:
    """Queries, keys and values side by side, [T, C], and the gate [T, N * H].

    Older files have them in one matrix, where each head of keys stands beside its heads of values.
    """
    if layer.get("attn_qkv"):
        qkv_TC = layer.linear(x_TD, "attn_qkv", "qkv", scaled=False)
        return qkv_TC, layer.linear(x_TD, "attn_gate", "gate", scaled=False)
    all_TGE = g.heads(layer.linear(x_TD, "ssm_in", "qkvz", scaled=False), net.n_group)
    parts, start = [], 0
    for width in (net.head_dim, net.head_dim, *(net.n_head // net.n_group * net.head_dim,) * 2):
        parts.append(g.flatten(g.columns(all_TGE, start, start + width)))
        start += width
    return g.concat(g.concat(parts[0], parts[1]), parts[2], "qkv"), parts[3]


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Experts, and the shared one times a gate of its own."""
    chosen = choose(g, config.routing, layer, x_TD)
    chosen_TD = chosen.combine(chosen.gated(x_TD))
    return g.add(chosen_TD, qwen2moe.shared(g, layer, x_TD, scaled=True), "experts")


build = partial(
    llama.build,
    attention=mixer,
    project=partial(_delta_net.out, scaled=False),
    feed_forward=feed_forward,
    ffn_norm="post_attention_norm",
)

ahead = partial(_ahead.build, attention=attention, feed_forward=feed_forward, ffn_norm="post_attention_norm")


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, one of them as older files were."""
    fused = {"ssm_ba.weight": (8, 64)} | {
        tensor: shape for tensor, shape in TENSORS.items() if not tensor.startswith(("ssm_beta", "ssm_alpha"))
    }
    older = {"ssm_in.weight": (192, 64)} | {
        tensor: shape for tensor, shape in fused.items() if not tensor.startswith("attn")
    }
    layer = {**GATED_HEADS, **shared_expert(), "ffn_gate_inp_shexp.weight": (64,)}
    plain, old = (
        hybrid(name, memory, name=kind, n_expert=5, layer=layer, without=("ffn_norm.weight",),
               metadata={**KEYS, "full_attention_interval": 2})
        for kind, memory in (("plain", fused), ("older", older))
    )  # fmt: skip
    return [plain, old, _ahead.sample(name, plain)]
