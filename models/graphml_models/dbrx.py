"""DBRX (Databricks 2024, "Introducing DBRX"): experts behind layer norms, and held queries, keys and values.

Letters as in `_layer_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _layer_norm
from graphml_models._attention import rotated_heads
from graphml_models._experts import swiglu_experts
from graphml_models._layer_norm import norm
from graphml_models._samples import transformer


@dataclass(frozen=True)
class Config(_layer_norm.Config):
    """As of the family; clamp_kqv: bound of queries, keys and values, 0 if there is none."""

    clamp_kqv: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys, eps=_config.LAYER_EPS)
        return cls(**vars(known), clamp_kqv=keys.number("attention.clamp_kqv"))


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD = attention(g, config, layer, table, norm(layer, x_TD, "attn_norm", config.norm_eps))
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_output", "attn_out"), "attn_residual")
        h_TD = norm(layer, x_TD, "attn_output_norm", config.norm_eps)
        x_TD = g.add(x_TD, swiglu_experts(g, layer, h_TD, config.n_expert_used), "ffn_residual")
    return weights.logits(norm(weights, x_TD, "output_norm", config.norm_eps))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention before its output projection, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "neox", clamp=config.clamp_kqv)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    keys = {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": 0.5}
    norm = {"attn_output_norm.weight": (64,)}
    return [transformer(name, n_expert=5, layer=norm, without=("ffn_norm.weight",), metadata=keys)]
