"""Phi-1.5 and Phi-2 (Li et al. 2023, arXiv:2309.05463): attention beside feed-forward, both behind one norm.

A part of each head rotates. Letters as in `_layer_norm`.
"""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models._layer_norm import Config, attend_rotated, gelu_ffn, norm
from graphml_models._samples import layer_norm_transformer


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD = norm(layer, x_TD, "attn_norm", config.norm_eps)
        a_TD = attend_rotated(g, config, layer, table, h_TD)
        x_TD = g.add(x_TD, layer.linear(a_TD, "attn_output", "attn_out"), "attn_residual")
        x_TD = g.add(x_TD, gelu_ffn(layer, h_TD, config.gelu_erf), "ffn_residual")
    return weights.logits(norm(weights, x_TD, "output_norm", config.norm_eps))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    bias = {"output.bias": (80,)}
    partial = {"rope.dimension_count": 8}
    return [
        layer_norm_transformer(
            name, fused=False, top=bias, without=("ffn_norm.weight", "ffn_norm.bias"), metadata=partial
        )
    ]
