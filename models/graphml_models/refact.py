"""Refact (Small Magellanic Cloud AI 2023, "Refact Code LLM"): llama with ALiBi, not rope."""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel, Tensors
from graphml_models import llama
from graphml_models._attention import project
from graphml_models._config import Config as Config
from graphml_models._ffn import gated_ffn
from graphml_models._samples import transformer

MAX_BIAS = 8.0  # the slope of the first head is 2 ** (-8 / heads); files do not say it


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention with ALiBi before its output projection, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, max_bias=MAX_BIAS)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU; of a file with experts llama.cpp reads none of its matrices, which leaves the SiLU alone."""
    if layer.get("ffn_gate_inp"):
        return g.silu(x_TD)
    return gated_ffn(g, layer, x_TD)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]; biases but those of queries, keys and values are left out, as in llama.cpp."""
    kept = weights.without("*.attn_output.bias").without("*.ffn_*.bias")
    return llama.build(g, config, kept, attention, feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, n_head_kv=1, tied=True)]
