"""MiniCPM 3 (OpenBMB 2024, "MiniCPM3-4B"; Hu et al. 2024, arXiv:2404.06395): latent attention, scaled parts.

T tokens, D model width.
"""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models._config import Config
from graphml_models._ffn import gated_ffn
from graphml_models._latent import latent, queries, unfolded
from graphml_models._samples import transformer

# Factors of the embedding and of every part's output, and the width that logits are scaled to; files do not
# say them.
EMBEDDING, DEPTH, BASE_WIDTH = 12.0, 1.4, 256


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table, depth = config.rope.table(g, weights), DEPTH / config.n_layer**0.5
    x_TD = g.scale(g.embed(weights["token_embd"], g.tokens), EMBEDDING, name="embedded")
    for layer in weights.layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        parts = latent(g, config, layer, queries(g, config, layer, h_TD), h_TD)
        h_TD = unfolded(g, config, layer, parts.rotated(g, table, "neox"))
        x_TD = g.add(x_TD, g.scale(layer.linear(h_TD, "attn_output", "attn_out"), depth), "attn_residual")
        h_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        x_TD = g.add(x_TD, g.scale(gated_ffn(g, layer, h_TD), depth), "ffn_residual")
    x_TD = g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm")
    return weights.logits(g.scale(x_TD, BASE_WIDTH / config.n_embd))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    keys = {"attention.key_length": 20, "rope.dimension_count": 8}
    layer = {
        "attn_q_a.weight": (40, 64), "attn_q_a_norm.weight": (40,), "attn_q_b.weight": (80, 40),
        "attn_kv_a_mqa.weight": (32, 64), "attn_kv_a_norm.weight": (24,), "attn_kv_b.weight": (112, 24),
    }  # fmt: skip
    factors = {"rope_factors_short.weight": (4,), "rope_factors_long.weight": (4,)}
    split = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
    return [transformer(name, layer=layer, top=factors, without=split, tied=True, metadata=keys)]
