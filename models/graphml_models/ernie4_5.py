"""ERNIE 4.5, dense (Baidu 2025, "ERNIE 4.5 Technical Report"): the same graph as llama."""

from __future__ import annotations

from functools import partial

from graphml.engine.architecture import Layer, SampleModel
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._ffn import gated_ffn
from graphml_models._samples import transformer


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU."""
    return gated_ffn(g, layer, x_TD)


build = partial(llama.build, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, n_head_kv=1, tied=True)]
