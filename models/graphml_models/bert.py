"""BERT (Devlin et al. 2018, arXiv:1810.04805) and kin: RoBERTa, MiniLM, BGE, E5; learned positions, GELU."""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel, Tensors
from graphml_models._encoder import Config, embedded, encoder
from graphml_models._ffn import plain_ffn
from graphml_models._layer_norm import attend_rotated
from graphml_models._samples import N_EMBD, bert_like
from graphml_models.gpt2 import positions

CAUSAL, OUTPUT = False, "embeddings"


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Hidden rows [O, D]."""
    x_TD = embedded(weights, config, positions(g, config, weights))
    return encoder(
        weights, config, x_TD, lambda layer, h_TD: attend_rotated(g, config, layer, None, h_TD), gelu_ffn
    )


def gelu_ffn(layer: Layer, x_TD: Node) -> Node:
    """Feed-forward with GELU as it is defined."""
    return plain_ffn(layer.g, layer, x_TD, Builder.gelu_erf)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [bert_like(name, top={"position_embd.weight": (128, N_EMBD)})]
