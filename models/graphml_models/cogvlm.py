"""CogVLM (Wang et al. 2023, arXiv:2311.03079), on text alone: llama with q, k and v in one matrix.

Pictures would go through matrices of their own (`vis_*`), which stay unused. The rope is never scaled.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, llama
from graphml_models._attention import rotate
from graphml_models._rope import Rope
from graphml_models._samples import transformer


class Config(_config.Config):
    """As of every decoder; the file's rope settings mean nothing."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        return cls(**vars(replace(known, rope=Rope(known.head_dim))))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Multi-head attention, [T, N * H]."""
    width = config.n_head * config.head_dim
    qkv = layer.linear(x_TD, "attn_qkv", "qkv", scaled=False, rows=3 * width)
    parts = [g.columns(qkv, i * width, (i + 1) * width, name) for i, name in enumerate("qkv")]
    q_TNH, k_TNH, v_TNH = (g.heads(part, config.n_head) for part in parts)
    q_TNH, k_TNH = rotate(g, table, "neox", q_TNH, k_TNH)
    return g.attend(q_TNH, k_TNH, v_TNH, layer.index, config.scale)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]; factors of the rope are left out, as in llama.cpp."""
    feed_forward = partial(llama.feed_forward, scaled=False)
    return llama.build(g, config, weights.without("rope_freqs.weight"), attention, feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    both = {"attn_qkv.weight": (192, 64)}
    return [transformer(name, n_head_kv=4, layer=both, without=tuple(f"attn_{x}.weight" for x in "qkv"))]
