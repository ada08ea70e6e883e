"""Muse Glimmer (Meta 2026): gated attention, norms on both sides of the blocks, positions in windows.

The embedding is normed; logits are scaled and capped. T tokens, D model
width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _windows
from graphml_models._attention import norm_heads, rotated_heads
from graphml_models._ffn import gated_ffn
from graphml_models._samples import HEAD_NORMS, POST_NORMS, transformer
from graphml_models._windows import PATTERN, read_local_rope, read_windows

POST_EPS = 1e-8  # of the norms behind the blocks


@dataclass(frozen=True)
class Config(_windows.Config):
    """And factor and cap (0: none) of logits."""

    logit_scale: float
    final_logit_softcapping: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        return cls(
            **vars(known),
            windows=read_windows(keys, known.n_layer, period=4),
            local_rope=read_local_rope(keys, known.rope, scaled=False),
            logit_scale=keys.number("logit_scale"),
            final_logit_softcapping=keys.number("final_logit_softcapping", 30.0),
        )


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over normed heads, gated, before its output projection, [T, N * H]."""
    window = config.windows[layer.index]
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table if window else None, x_TD, "norm", norm_heads)
    y_TD = g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, window)
    return g.mul(y_TD, g.sigmoid(layer.linear(x_TD, "attn_gate", "attn_gate", scaled=False)), "gated")


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.local_rope.table(g, weights)
    x_TD = g.rms_norm(g.embed(weights["token_embd"], g.tokens), None, config.norm_eps, "embedding_norm")
    for layer in weights.layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        h_TD = attention(g, config, layer, table, h_TD)
        h_TD = layer.linear(h_TD, "attn_output", "attn_out")
        h_TD = g.rms_norm(h_TD, layer["post_attention_norm"], POST_EPS, "attn_post_norm")
        x_TD = g.add(x_TD, h_TD, "attn_residual")
        h_TD = gated_ffn(g, layer, g.rms_norm(x_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm"))
        x_TD = g.add(
            x_TD, g.rms_norm(h_TD, layer["post_ffw_norm"], POST_EPS, "ffn_post_norm"), "ffn_residual"
        )
    logits = weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))
    logits = g.scale(logits, config.logit_scale, name="logits_scaled")
    return g.softcap(logits, config.final_logit_softcapping) if config.final_logit_softcapping else logits


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests: a layer with a window shorter than the texts it reads, and one without."""
    keys = {"attention.sliding_window": 20, PATTERN: 2, "logit_scale": 0.5, "final_logit_softcapping": 3.0}
    layer = {**POST_NORMS, **HEAD_NORMS, "attn_gate.weight": (64, 64)}
    return [transformer(name, layer=layer, metadata=keys)]
