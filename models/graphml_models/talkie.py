"""Talkie (Talkie 2026, "talkie-1930-13b"): norms without weights, and the embedding again in each layer.

It has a factor in each. Heads are normed after the rotation, queries times a factor per head. T tokens, O
output rows, D model width, N heads, K key-value heads, H head width, F hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config
from graphml_models._attention import rotated_heads
from graphml_models._samples import transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """And a factor of the logits."""

    logit_scale: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        return cls(**vars(known), logit_scale=keys.number("logit_scale"))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over heads that are normed after the rotation, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "neox")
    factor_N1 = g.dequantize(layer["attn_q_norm"])
    q_TNH = g.rms_norm(q_TNH, factor_N1, config.norm_eps, "q_norm")
    k_TKH = g.rms_norm(k_TKH, None, config.norm_eps, "k_norm")
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)


def feed_forward(g: Builder, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU, of whose matrices the last alone may have a scale."""
    gate_TF, up_TF = (layer.linear(x_TD, f"ffn_{name}", name, scaled=False) for name in ("gate", "up"))
    return layer.linear(g.mul(g.silu(gate_TF), up_TF, "swiglu"), "ffn_down", "down")


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.rms_norm(g.embed(weights["token_embd"], g.tokens), None, config.norm_eps, "embedding_norm")
    embedding_TD = x_TD
    for layer in weights.layers(config.n_layer):
        h_TD = attention(g, config, layer, table, g.rms_norm(x_TD, None, config.norm_eps, "attn_norm"))
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_output", "attn_out"), "attn_residual")
        h_TD = feed_forward(g, layer, g.rms_norm(x_TD, None, config.norm_eps, "ffn_norm"))
        x_TD = g.add(x_TD, h_TD, "ffn_residual")
        x_TD = g.add(x_TD, g.mul(embedding_TD, layer["layer_output_scale"]), "embedding_residual")
    logits = weights.logits(g.rms_norm(x_TD, None, config.norm_eps, "output_norm"), "unscaled")
    return g.scale(logits, config.logit_scale, name="logits")


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    layer = {"attn_q_norm.weight": (4, 1), "layer_output_scale.weight": (1,)}
    without = ("attn_norm.weight", "ffn_norm.weight", "output_norm.weight")
    return [transformer(name, metadata={"logit_scale": 0.5}, layer=layer, without=without)]
