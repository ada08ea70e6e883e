"""BLOOM (Le Scao et al. 2022, arXiv:2211.05100): a norm of the embedding, and ALiBi instead of positions."""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel, Tensors
from graphml_models._layer_norm import Config, attend, decoder, norm
from graphml_models._samples import layer_norm_transformer

MAX_BIAS = 8.0  # the slope of the first head is 2 ** (-8 / heads); files do not say it


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    x_TD = norm(weights, g.embed(weights["token_embd"], g.tokens), "token_embd_norm", config.norm_eps)

    def attention(layer: Layer, h_TD: Node) -> Node:
        return attend(g, config, layer, h_TD, max_bias=MAX_BIAS)

    return decoder(weights, config, x_TD, attention)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    norms = {"token_embd_norm.weight": (64,), "token_embd_norm.bias": (64,)}
    return [layer_norm_transformer(name, tied=True, top=norms)]
