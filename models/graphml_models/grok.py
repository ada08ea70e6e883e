"""Grok (xAI 2024, "Open Release of Grok-1"): experts, a norm behind every part, scores held softly.

T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config
from graphml_models._attention import rotated_heads
from graphml_models._experts import route
from graphml_models._ffn import gated_ffn
from graphml_models._samples import Shapes, transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """As of every decoder; limits of attention's scores and of logits, and factors."""

    attn_logit_softcapping: float
    final_logit_softcapping: float
    embedding_scale: float
    logit_scale: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata; what old files do not say is as in Grok-1."""
        known = _config.read(keys)
        known = replace(known, scale=keys.number("attention.output_scale", 0.08838834764831845))
        return cls(
            **vars(known),
            attn_logit_softcapping=keys.number("attn_logit_softcapping", 30.0),
            final_logit_softcapping=keys.number("final_logit_softcapping", 0.0),
            embedding_scale=keys.number("embedding_scale", 78.38367176906169),
            logit_scale=keys.number("logit_scale", 0.5773502691896257),
        )


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""

    def norm(tensors: Tensors, x: Node, name: str) -> Node:
        return g.rms_norm(x, tensors[name], config.norm_eps, name)

    table = config.rope.table(g, weights)
    x_TD = g.scale(g.embed(weights["token_embd"], g.tokens), config.embedding_scale, name="embedded")
    for layer in weights.layers(config.n_layer):
        h_TD = attention(g, config, layer, table, norm(layer, x_TD, "attn_norm"))
        h_TD = norm(layer, layer.linear(h_TD, "attn_output", "attn_out"), "attn_output_norm")
        x_TD = g.add(x_TD, h_TD, "attn_residual")
        h_TD = feed_forward(g, config, layer, norm(layer, x_TD, "ffn_norm"))
        last = "layer_output_norm" if layer.get("layer_output_norm") else "post_ffw_norm"
        x_TD = g.add(x_TD, norm(layer, h_TD, last), "ffn_residual")
    y = g.scale(
        weights.logits(norm(weights, x_TD, "output_norm"), "unscaled"), config.logit_scale, name="logits"
    )
    cap = config.final_logit_softcapping
    if cap == 0.0:
        return y
    return g.scale(g.tanh(g.scale(y, 1.0 / cap)), cap, name="capped_logits")


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention before its output projection, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "neox")
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, softcap=config.attn_logit_softcapping)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """GELU-gated experts, and with Grok-2 a dense feed-forward beside them, [T, D]."""
    probabilities_TE = g.softmax(layer.linear(x_TD, "ffn_gate_inp", "router"))
    chosen = route(g, layer, probabilities_TE, config.n_expert_used)
    gate_TUF, up_TUF = chosen.linear(x_TD, "ffn_gate_exps"), chosen.linear(x_TD, "ffn_up_exps")
    y_TD = chosen.combine(chosen.linear(g.mul(g.gelu(gate_TUF), up_TUF), "ffn_down_exps"))
    if layer.get("ffn_up", "ffn_gate", "ffn_down") is None:
        return y_TD
    return g.scale(g.add(gated_ffn(g, layer, x_TD, Builder.gelu), y_TD), sqrt(0.5), name="experts")


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: Grok-1 and Grok-2."""
    norms: Shapes = {"attn_output_norm.weight": (64,), "layer_output_norm.weight": (64,)}
    dense: Shapes = {"ffn_gate.weight": (96, 64), "ffn_up.weight": (96, 64), "ffn_down.weight": (64, 96)}
    keys = {"attention.output_scale": 0.3, "final_logit_softcapping": 5.0, "attn_logit_softcapping": 2.0}
    return [
        transformer(name, "one", n_expert=5, layer=norms),
        transformer(name, "two", n_expert=5, layer=norms | dense, metadata={**keys, "embedding_scale": 2.0}),
    ]
