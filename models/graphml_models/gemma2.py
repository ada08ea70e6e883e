"""Gemma 2 (Gemma Team 2024, arXiv:2408.00118): gemma with norms after the blocks too, windows and soft caps.

T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _windows, gemma, llama
from graphml_models._attention import rotated_heads
from graphml_models._samples import POST_NORMS, transformer
from graphml_models._windows import read_local_rope, read_windows, tables_by_layer


@dataclass(frozen=True)
class Config(_windows.Config):
    """And caps of scores and logits (0: none)."""

    attn_logit_softcapping: float
    final_logit_softcapping: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        known = replace(known, scale=scale(keys, known, n_layer=46))
        windows = read_windows(keys, known.n_layer, period=2, size=4096)
        return cls(
            **vars(known),
            windows=windows,
            local_rope=read_local_rope(keys, known.rope),
            attn_logit_softcapping=keys.number("attn_logit_softcapping", 50.0),
            final_logit_softcapping=keys.number("final_logit_softcapping", 30.0),
        )


def scale(keys: Keys, known: _config.Config, n_layer: int) -> float:
    """What scores are multiplied with, where the file does not say it.

    In the 27B model, told by its layers, as if heads filled the width.
    """
    if keys.has("attention.scale"):
        return known.scale
    full = known.n_layer == n_layer
    width = known.n_embd // known.n_head if full else known.head_dim
    return 1.0 / math.sqrt(width)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention with capped scores, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "neox")
    window, cap = config.windows[layer.index], config.attn_logit_softcapping
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, window, cap)


def build(
    g: Builder, config: Config, weights: Tensors, attention: llama.Attention[Config] = attention
) -> Node:
    """Logits [O, vocabulary]."""
    logits = llama.build(
        g,
        config,
        weights,
        attention,
        gemma.feed_forward,
        tables=tables_by_layer,
        embed=gemma.embedded,
        norms="both",
    )
    return g.softcap(logits, config.final_logit_softcapping) if config.final_logit_softcapping else logits


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: windows shorter than the texts they read."""
    keys = {"attention.sliding_window": 20, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    return [transformer(name, tied=True, metadata=keys, layer=POST_NORMS)]
