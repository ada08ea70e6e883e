"""Hunyuan dense (Tencent 2025): llama with a rope of halves and norms on each head of q and k behind it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, llama
from graphml_models._attention import norm_heads, rotated_heads
from graphml_models._rope import read_sections, stretched_base
from graphml_models._samples import HEAD_NORMS, transformer


class Config(_config.Config):
    """With a base of the rope that grows with `rope.scaling.alpha` (NTK-aware scaling)."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        read_sections(keys)
        rope, alpha = known.rope, keys.number("rope.scaling.alpha", 0.0)
        if alpha > 0.0:
            rope = replace(rope, freq_base=stretched_base(rope.freq_base, alpha, known.head_dim))
        return cls(**vars(replace(known, rope=rope)))


def attention(
    g: Builder, config: _config.Config, layer: Layer, table: Node, x_TD: Node, mode: str = "neox"
) -> Node:
    """Grouped-query attention, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, mode)
    q_TNH, k_TKH = norm_heads(g, config, layer, q_TNH, k_TKH)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)


feed_forward = partial(llama.feed_forward, scaled=False)
build = partial(llama.build, attention=attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, layer=HEAD_NORMS, tied=True, metadata={"rope.scaling.alpha": 100.0})]
