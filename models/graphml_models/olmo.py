"""OLMo (Groeneveld et al. 2024, arXiv:2402.00838): llama with layer norms that have no weights.

T tokens, O output rows, D model width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config
from graphml_models._attention import rotated_heads
from graphml_models._ffn import gated_ffn
from graphml_models._samples import transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """And how far from 0 q, k and v may be (0: as far as they are)."""

    clamp_kqv: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys, eps=_config.LAYER_EPS)
        return cls(**vars(known), clamp_kqv=keys.number("attention.clamp_kqv", 0.0))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over clamped q, k and v, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "norm", clamp=config.clamp_kqv)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD = g.layer_norm(x_TD, None, None, config.norm_eps, "attn_norm")
        h_TD = attention(g, config, layer, table, h_TD)
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_output", "attn_out"), "attn_residual")
        h_TD = g.layer_norm(x_TD, None, None, config.norm_eps, "ffn_norm")
        x_TD = g.add(x_TD, gated_ffn(g, layer, h_TD), "ffn_residual")
    return weights.logits(g.layer_norm(x_TD, None, None, config.norm_eps, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    norms = ("attn_norm.weight", "ffn_norm.weight", "output_norm.weight")
    return [transformer(name, without=norms, layer_norm=True, metadata={"attention.clamp_kqv": 0.5})]
