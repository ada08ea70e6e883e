"""StableLM (Bellagente et al. 2024, arXiv:2402.17834): layer norms, SwiGLU, and a part of each head rotates.

StableLM 2 12B has norms for each head of queries and keys, and attention beside feed-forward. Letters as in
`_layer_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _layer_norm
from graphml_models._attention import project, rotate
from graphml_models._ffn import gated_ffn
from graphml_models._layer_norm import norm
from graphml_models._samples import layer_norm_transformer

NORMED, PARALLEL = "heads_normed", "halves_parallel"  # of folders; of files the tensors say it


@dataclass(frozen=True)
class Config(_layer_norm.Config):
    """normed: whether heads have norms; parallel: attention is beside feed-forward; None: see the tensors."""

    normed: bool | None
    parallel: bool | None

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _layer_norm.Config.read(keys)
        normed, parallel = (keys.boolean(key, False) if keys.has(key) else None for key in (NORMED, PARALLEL))
        return cls(**vars(known), normed=normed, parallel=parallel)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD = norm(layer, x_TD, "attn_norm", config.norm_eps)
        a_TD = attention(g, config, layer, table, h_TD)
        x_TD = g.add(x_TD, layer.linear(a_TD, "attn_output", "attn_out"), "attn_residual")
        if has(layer, "ffn_norm", None if config.parallel is None else not config.parallel):
            h_TD = norm(layer, x_TD, "ffn_norm", config.norm_eps)
        x_TD = g.add(x_TD, gated_ffn(g, layer, h_TD), "ffn_residual")
    return weights.logits(norm(weights, x_TD, "output_norm", config.norm_eps))


def has(layer: Layer, tensor: str, stated: bool | None) -> bool:
    """Whether a layer has a tensor, or what the model says of it."""
    return layer.get(tensor) is not None if stated is None else stated


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention before its output projection, [T, N * H]; the norms have weights for every head."""
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD)
    if has(layer, "attn_q_norm", config.normed):
        q_TNH = g.layer_norm(q_TNH, g.dequantize(layer["attn_q_norm"]), None, config.norm_eps, "q_norm")
        k_TKH = g.layer_norm(k_TKH, g.dequantize(layer["attn_k_norm"]), None, config.norm_eps, "k_norm")
    q_TNH, k_TKH = rotate(g, table, "neox", q_TNH, k_TKH)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: one norm after the other, and the 12B model's."""
    no_bias = ("ffn_gate.bias", "ffn_up.bias", "ffn_down.bias", "attn_output.bias")
    norms = {"attn_norm.bias": (64,), "attn_q_norm.weight": (4, 16), "attn_k_norm.weight": (2, 16)}
    shared = partial(layer_norm_transformer, name, fused=False, gated=True)
    return [
        shared("small", without=no_bias, metadata={"rope.dimension_count": 4}),
        shared("large", n_head_kv=2, biases=False, layer=norms, without=("ffn_norm.weight",)),
    ]
