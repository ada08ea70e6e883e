"""Falcon (Almazrouei et al. 2023, arXiv:2311.16867): attention beside feed-forward.

Few key-value heads; the 40B model has a norm of its own for attention. Letters as in `_layer_norm`.
"""

from __future__ import annotations

from functools import partial

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
        own = layer.get("attn_norm_2") is not None
        a_TD = norm(layer, x_TD, "attn_norm_2", config.norm_eps) if own else h_TD
        a_TD = attend_rotated(g, config, layer, table, a_TD)
        x_TD = g.add(x_TD, layer.linear(a_TD, "attn_output", "attn_out"), "attn_residual")
        x_TD = g.add(x_TD, gelu_ffn(layer, h_TD, config.gelu_erf), "ffn_residual")
    return weights.logits(norm(weights, x_TD, "output_norm", config.norm_eps))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: the smaller Falcon and the larger."""
    shared = partial(
        layer_norm_transformer,
        name,
        biases=False,
        without=("ffn_norm.weight",),
        top={"output_norm.bias": (64,)},
    )
    bias = {"attn_norm.bias": (64,)}  # only norms have one
    own = {"attn_norm_2.weight": (64,), "attn_norm_2.bias": (64,)}
    return [
        shared("small", n_head_kv=1, tied=True, layer=bias),
        shared("large", n_head_kv=2, layer=bias | own),
    ]
