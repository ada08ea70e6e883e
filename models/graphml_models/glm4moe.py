"""GLM-4.5 (GLM Team 2025, arXiv:2508.06471): shared experts and experts chosen by sigmoid."""

from __future__ import annotations

from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _ahead, _config, _routing, llama
from graphml_models._attention import norm_heads, project, rotate
from graphml_models._routing import SIGMOID, Routing, shared_and_chosen
from graphml_models._samples import HEAD_NORMS, dense_layers, shared_expert, transformer


class Config(_routing.Config):
    """As of every decoder with experts."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        return cls(**vars(known), routing=Routing.read(keys, SIGMOID))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, with norms on each head in the larger model, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD)
    if layer.get("attn_q_norm"):
        q_TNH, k_TKH = norm_heads(g, config, layer, q_TNH, k_TKH)
    q_TNH, k_TKH = rotate(g, table, "neox", q_TNH, k_TKH)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)


build = partial(
    llama.build, attention=attention, feed_forward=shared_and_chosen, ffn_norm="post_attention_norm"
)
ahead = partial(
    _ahead.build, attention=attention, feed_forward=shared_and_chosen, ffn_norm="post_attention_norm"
)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: GLM-4.5 Air and GLM-4.5."""
    layer = {**shared_expert(), "post_attention_norm.weight": (64,), "exp_probs_b.bias": (5,)}
    keys = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5,
            "rope.dimension_count": 8}  # fmt: skip
    shared = partial(transformer, name, n_expert=5, biases=("attn_q", "attn_k", "attn_v"), metadata=keys)
    first = dense_layers(0, without=("ffn_norm.weight",))
    air = shared("air", layer=layer, **first)
    large = shared("large", layer={**layer, **HEAD_NORMS}, **first)
    return [air, large, _ahead.sample(name, air, shared=False)]
