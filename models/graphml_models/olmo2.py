"""OLMo 2 (OLMo Team 2025, arXiv:2501.00656): llama with norms behind the blocks instead of before them.

OLMo 3 has windows too. T tokens, O output rows, D model width, N heads, H head width.
"""

from __future__ import annotations

from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, SampleModel, Tensors
from graphml_models import _config, _windows
from graphml_models._attention import norm_rows
from graphml_models._ffn import gated_ffn
from graphml_models._samples import POST_NORMS, row_norms, transformer
from graphml_models._windows import read_local_rope, read_windows, rope_tables


class Config(_windows.Config):
    """As of every decoder of which some layers see a window."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        windows = read_windows(keys, known.n_layer, period=4, size=0)
        return cls(**vars(known), windows=windows, local_rope=read_local_rope(keys, known.rope, scaled=False))


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    tables = rope_tables(g, weights, config.rope, config.local_rope)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        table = tables[config.windows[layer.index] > 0]
        h_TD = _windows.attention(g, config, layer, table, x_TD, norm_rows)
        h_TD = layer.linear(h_TD, "attn_output", "attn_out")
        h_TD = g.rms_norm(h_TD, layer["post_attention_norm"], config.norm_eps, "attn_post_norm")
        x_TD = g.add(x_TD, h_TD, "attn_residual")
        h_TD = g.rms_norm(gated_ffn(g, layer, x_TD), layer["post_ffw_norm"], config.norm_eps, "ffn_post_norm")
        x_TD = g.add(x_TD, h_TD, "ffn_residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, one with windows shorter than the texts they read."""
    keys = {"attention.sliding_window": 20, "attention.sliding_window_pattern": 2, "rope.scaling.factor": 8.0}
    layer = {**POST_NORMS, **row_norms(2)}
    before = ("attn_norm.weight", "ffn_norm.weight")
    return [transformer(name, "2", layer=layer, without=before),
            transformer(name, "3", layer=layer, without=before, metadata=keys)]  # fmt: skip
