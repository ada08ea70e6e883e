"""Orion (OrionStar 2024, arXiv:2401.12246): llama with layer norms and a rope of halves."""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel, Tensors
from graphml_models._ffn import gated_ffn
from graphml_models._layer_norm import Config, attend_rotated, decoder
from graphml_models._samples import layer_norm_transformer


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)

    def attention(layer: Layer, x_TD: Node) -> Node:
        return attend_rotated(g, config, layer, table, x_TD)

    def feed_forward(layer: Layer, x_TD: Node) -> Node:
        return gated_ffn(g, layer, x_TD)

    return decoder(weights, config, g.embed(weights["token_embd"], g.tokens), attention, feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [layer_norm_transformer(name, n_head_kv=2, fused=False, gated=True, biases=False)]
