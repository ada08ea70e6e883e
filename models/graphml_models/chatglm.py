"""ChatGLM and GLM-4 9B (Zeng et al. 2024, arXiv:2406.12793): llama with gate and up in one matrix.

A part of each head rotates.
"""

from __future__ import annotations

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._ffn import halved_ffn
from graphml_models._samples import transformer


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU."""
    return halved_ffn(g, layer, x_TD)


build = partial(llama.build, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    both = {"ffn_up.weight": (192, 64)}
    return [transformer(name, biases=("attn_q", "attn_k", "attn_v"), layer=both, without=("ffn_gate.weight",),
                        metadata={"rope.dimension_count": 8})]  # fmt: skip
