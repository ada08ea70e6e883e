"""Gemma (Gemma Team 2024, arXiv:2403.08295): llama with scaled embeddings, GELU gates and a rope of halves.

T tokens, D model width. GGUF stores the norms' weights with the 1 that the paper adds to them.
"""

from __future__ import annotations

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel, Tensors
from graphml_models import llama
from graphml_models._config import Config
from graphml_models._ffn import gated_ffn
from graphml_models._samples import transformer

attention = partial(llama.attention, mode="neox")


def embedded(g: Builder, config: Config, weights: Tensors) -> Node:
    """The rows of the tokens, as large as a normed row, [T, D]."""
    return g.scale(llama.embedded(g, config, weights), config.n_embd**0.5, name="embedding_scaled")


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """GELU gates."""
    return gated_ffn(g, layer, x_TD, Builder.gelu)


build = partial(llama.build, attention=attention, feed_forward=feed_forward, embed=embedded)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, n_head_kv=1, tied=True)]
