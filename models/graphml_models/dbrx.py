"""DBRX (Databricks 2024, "Introducing DBRX"): experts behind layer norms, and held queries, keys and values.

Letters as in `_layer_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, _layer_norm, llama
from graphml_models._attention import rotated_heads
from graphml_models._layer_norm import layer_norm
from graphml_models._samples import transformer


@dataclass(frozen=True)
class Config(_layer_norm.Config):
    """As of the family; clamp_kqv: bound of queries, keys and values, 0 if there is none."""

    clamp_kqv: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys, eps=_config.LAYER_EPS)
        return cls(**vars(known), clamp_kqv=keys.number("attention.clamp_kqv"))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention before its output projection, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "neox", clamp=config.clamp_kqv)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)


feed_forward = partial(llama.feed_forward, scaled=False)
build = partial(
    llama.build, attention=attention, feed_forward=feed_forward, ffn_norm="attn_output_norm", norm=layer_norm
)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    keys = {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": 0.5}
    norm = {"attn_output_norm.weight": (64,)}
    return [transformer(name, n_expert=5, layer=norm, without=("ffn_norm.weight",), metadata=keys)]
