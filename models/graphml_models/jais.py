"""Jais (Sengupta et al. 2023, arXiv:2308.16149): GPT-2 with ALiBi and SwiGLU.

Scores are divided by the head width itself, as muP has it (Yang et al. 2022, arXiv:2203.03466).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, _layer_norm, llama
from graphml_models._layer_norm import attend, no_tables
from graphml_models._samples import layer_norm_transformer


@dataclass(frozen=True)
class Config(_layer_norm.Config):
    """As of the family; max_bias: of ALiBi."""

    max_bias: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        max_bias = keys.number("attention.max_alibi_bias", 0.0)
        known = _config.read(keys, eps=_config.LAYER_EPS)
        return cls(**vars(known), max_bias=max_bias)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention with ALiBi before its output projection, [T, N * H]."""
    return attend(g, config, layer, table, x_TD, scale=1.0 / config.head_dim, max_bias=config.max_bias)


feed_forward = partial(llama.feed_forward, scaled=False)
build = partial(_layer_norm.build, attention=attention, feed_forward=feed_forward, tables=no_tables)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [layer_norm_transformer(name, gated=True, metadata={"attention.max_alibi_bias": 8.0})]
