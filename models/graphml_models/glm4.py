"""GLM-4 0414 (GLM Team 2024, arXiv:2406.12793): llama with norms before and after the blocks.

Gate and up are in one matrix. T tokens, O output rows, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, SampleModel, Tensors
from graphml_models import _config, llama
from graphml_models._ffn import halved_ffn
from graphml_models._rope import read_sections
from graphml_models._samples import POST_NORMS, transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """And how the rope pairs dimensions."""

    rope_mode: str

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata: models that see pictures, too, have a rope of halves in sections."""
        known = _config.read(keys)
        return cls(**vars(known), rope_mode="neox" if read_sections(keys) else "norm")


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        h_TD = llama.attention(g, config, layer, table, h_TD, config.rope_mode)
        h_TD = layer.linear(h_TD, "attn_output", "attn_out")
        h_TD = g.rms_norm(h_TD, layer["post_attention_norm"], config.norm_eps, "attn_post_norm")
        x_TD = g.add(x_TD, h_TD, "attn_residual")
        h_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        h_TD = halved_ffn(g, layer, h_TD)
        h_TD = g.rms_norm(h_TD, layer["post_ffw_norm"], config.norm_eps, "ffn_post_norm")
        x_TD = g.add(x_TD, h_TD, "ffn_residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    layer = {**POST_NORMS, "ffn_up.weight": (192, 64)}
    keys = {"rope.dimension_count": 8}
    return [transformer(name, layer=layer, without=("ffn_gate.weight",), metadata=keys)]
