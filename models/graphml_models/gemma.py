"""Gemma (Gemma Team 2024, arXiv:2403.08295): llama with scaled embeddings, GELU gates and a rope of halves.

T tokens, O output rows, D model width. GGUF stores the norms' weights with the 1 that the paper adds to them.
"""

from __future__ import annotations

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import llama
from graphml_models._config import Config
from graphml_models._ffn import gated_ffn
from graphml_models._samples import transformer

attention = partial(llama.attention, mode="neox")


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.scale(g.embed(weights["token_embd"], g.tokens), config.n_embd**0.5, name="embedding_scaled")
    for layer in weights.layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        h_TD = attention(g, config, layer, table, h_TD)
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_output", "attn_out"), "attn_residual")
        h_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        x_TD = g.add(x_TD, gated_ffn(g, layer, h_TD, Builder.gelu), "ffn_residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, n_head_kv=1, tied=True)]
