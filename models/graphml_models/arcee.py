"""Arcee AFM (Arcee AI 2025): llama whose feed-forward is ungated, relu squared."""

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._ffn import plain_ffn, relu_squared
from graphml_models._samples import transformer


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """down(relu(up(x)) squared)."""
    return plain_ffn(g, layer, x_TD, relu_squared)


build = partial(llama.build, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, without=("ffn_gate.weight",))]
