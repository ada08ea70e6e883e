"""Nemotron-4 (Parmar et al. 2024, arXiv:2402.16819): squared ReLU, and a part of each head rotates."""

from __future__ import annotations

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel
from graphml_models import _layer_norm
from graphml_models._ffn import plain_ffn, relu_squared
from graphml_models._layer_norm import Config
from graphml_models._samples import layer_norm_transformer


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Feed-forward with squared ReLU."""
    return plain_ffn(g, layer, x_TD, relu_squared)


build = partial(_layer_norm.build, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [layer_norm_transformer(name, n_head_kv=2, fused=False, metadata={"rope.dimension_count": 8})]
