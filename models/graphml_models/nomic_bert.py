"""Nomic Embed (Nussbaum et al. 2024, arXiv:2402.01613): BERT with a rope of halves and SwiGLU."""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel, Tensors
from graphml_models._encoder import Config, embedded, encoder
from graphml_models._ffn import gated_ffn
from graphml_models._layer_norm import Part, attend_rotated
from graphml_models._samples import bert_like

CAUSAL, OUTPUT = False, "embeddings"


def swiglu(layer: Layer, x_TD: Node) -> Node:
    """Feed-forward with SwiGLU."""
    return gated_ffn(layer.g, layer, x_TD)


def build(g: Builder, config: Config, weights: Tensors, ffn: Part = swiglu) -> Node:
    """Hidden rows [O, D]."""
    table = config.rope.table(g, weights)
    x_TD = embedded(weights, config)
    return encoder(
        weights, config, x_TD, lambda layer, h_TD: attend_rotated(g, config, layer, table, h_TD), ffn
    )


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [bert_like(name, fused=True, gated=True, biases=False, metadata={"rope.freq_base": 1000.0})]
