"""PLaMo (Preferred Networks 2023, "PLaMo-13B"): attention and SwiGLU start from the same norm.

T tokens, D model width.
"""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import llama
from graphml_models._config import Config
from graphml_models._ffn import gated_ffn
from graphml_models._samples import transformer


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        a_TD = llama.attention(g, config, layer, table, h_TD, mode="neox")
        x_TD = g.add(x_TD, layer.linear(a_TD, "attn_output", "attn_out"), "attn_residual")
        x_TD = g.add(x_TD, gated_ffn(g, layer, h_TD), "ffn_residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, n_head_kv=1, without=("ffn_norm.weight",))]
