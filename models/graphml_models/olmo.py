"""OLMo (Groeneveld et al. 2024, arXiv:2402.00838): llama with layer norms that have no weights.

T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, llama
from graphml_models._attention import rotated_heads
from graphml_models._samples import transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """And how far from 0 q, k and v may be (0: as far as they are)."""

    clamp_kqv: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys, eps=_config.LAYER_EPS)
        return cls(**vars(known), clamp_kqv=keys.number("attention.clamp_kqv", 0.0))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over clamped q, k and v, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "norm", clamp=config.clamp_kqv)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)


def norm(g: Builder, config: Config, tensors: Tensors, x: Node, tensor: str, name: str) -> Node:
    """A layer norm without weights."""
    return g.layer_norm(x, None, None, config.norm_eps, name)


feed_forward = partial(llama.feed_forward, scaled=False)
build = partial(llama.build, attention=attention, feed_forward=feed_forward, norm=norm)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    norms = ("attn_norm.weight", "ffn_norm.weight", "output_norm.weight")
    return [transformer(name, without=norms, layer_norm=True, metadata={"attention.clamp_kqv": 0.5})]
