"""Jais (Sengupta et al. 2023, arXiv:2308.16149): GPT-2 with ALiBi and SwiGLU.

Scores are divided by the head width itself, as muP has it (Yang et al. 2022, arXiv:2203.03466).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _layer_norm
from graphml_models._ffn import gated_ffn
from graphml_models._layer_norm import attend, decoder
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


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""

    def attention(layer: Layer, x_TD: Node) -> Node:
        return attend(g, config, layer, x_TD, scale=1.0 / config.head_dim, max_bias=config.max_bias)

    def ffn(layer: Layer, x_TD: Node) -> Node:
        return gated_ffn(g, layer, x_TD)

    return decoder(weights, config, g.embed(weights["token_embd"], g.tokens), attention, ffn)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [layer_norm_transformer(name, gated=True, metadata={"attention.max_alibi_bias": 8.0})]
