"""EXAONE 4 (LG AI Research 2025, arXiv:2507.11407): norms behind the blocks and on heads; windows.

T tokens, O output rows, D model width, N heads, K key-value heads, H head width.
"""

from __future__ import annotations

from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _windows
from graphml_models._attention import norm_heads, rotated_heads
from graphml_models._ffn import gated_ffn
from graphml_models._samples import HEAD_NORMS, POST_NORMS, transformer
from graphml_models._windows import PATTERN, read_local_rope, read_windows


class Config(_windows.Config):
    """Where some layers have a window, the others rotate no heads: they have no positions."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata; a model of 64 layers has windows, and one whose metadata list them."""
        known = _config.read(keys)
        n_layer = known.n_layer
        large = n_layer == 64 or keys.has(PATTERN)
        windows = read_windows(keys, n_layer, period=4, size=4096) if large else (0,) * n_layer
        return cls(**vars(known), windows=windows, local_rope=read_local_rope(keys, known.rope))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over normed heads, [T, N * H]."""
    window = config.windows[layer.index]
    rope = table if window or not any(config.windows) else None
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, rope, x_TD, "neox", norm_heads)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, window)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = (config.local_rope if any(config.windows) else config.rope).table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD = attention(g, config, layer, table, x_TD)
        h_TD = layer.linear(h_TD, "attn_output", "attn_out")
        h_TD = g.rms_norm(h_TD, layer["post_attention_norm"], config.norm_eps, "attn_post_norm")
        x_TD = g.add(x_TD, h_TD, "attn_residual")
        h_TD = g.rms_norm(gated_ffn(g, layer, x_TD), layer["post_ffw_norm"], config.norm_eps, "ffn_post_norm")
        x_TD = g.add(x_TD, h_TD, "ffn_residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, the large one with windows shorter than the texts they read."""
    layer = {**POST_NORMS, **HEAD_NORMS}
    before = ("attn_norm.weight", "ffn_norm.weight")
    keys = {"attention.sliding_window": 20, PATTERN: 2}
    shared = partial(transformer, name, layer=layer, without=before)
    return [shared("small", rope_factors=True), shared("large", metadata=keys)]
