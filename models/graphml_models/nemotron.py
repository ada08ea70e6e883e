"""Nemotron-4 (Parmar et al. 2024, arXiv:2402.16819): squared ReLU, and a part of each head rotates."""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel, Tensors
from graphml_models._ffn import plain_ffn, relu_squared
from graphml_models._layer_norm import Config, attend_rotated, decoder
from graphml_models._samples import layer_norm_transformer


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)

    def attention(layer: Layer, x_TD: Node) -> Node:
        return attend_rotated(g, config, layer, table, x_TD)

    def ffn(layer: Layer, x_TD: Node) -> Node:
        return plain_ffn(g, layer, x_TD, relu_squared)

    return decoder(weights, config, g.embed(weights["token_embd"], g.tokens), attention, ffn)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [layer_norm_transformer(name, n_head_kv=2, fused=False, metadata={"rope.dimension_count": 8})]
