"""ERNIE 4.5, dense (Baidu 2025, "ERNIE 4.5 Technical Report"): the same graph as llama."""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel, Tensors
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._ffn import gated_ffn
from graphml_models._samples import transformer


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU."""
    return gated_ffn(g, layer, x_TD)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]; the bias of what attention gives is left out, as in llama.cpp."""
    kept = weights.without("*.attn_output.bias")
    return llama.build(g, config, kept, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, n_head_kv=1, tied=True)]
