"""The family of GPT-2: layer norms before attention and feed-forward, biases as far as the file has them.

T tokens, D model width, N heads, K key-value heads, H head width, F hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, Tensors
from graphml_models import _config
from graphml_models._attention import attention, project
from graphml_models._ffn import plain_ffn

Part = Callable[[Layer, Node], Node]


@dataclass(frozen=True)
class Config(_config.Config):
    """As of every decoder, with the epsilon of layer norms; gelu_erf: GELU by the error function."""

    gelu_erf: bool = field(default=False, kw_only=True)

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        return cls(**vars(_config.read(keys, eps=_config.LAYER_EPS)), gelu_erf=read_gelu_erf(keys))


def read_gelu_erf(keys: Keys) -> bool:
    """Whether folders of transformers say so; GGUF files do not, and llama.cpp has the tanh form for all."""
    activation = keys.text("hidden_activation", "gelu")
    if activation not in ("gelu", "gelu_erf"):
        raise keys.unsupported("hidden_activation", "gelu or gelu_erf")
    return activation == "gelu_erf"


def norm(weights: Tensors, x: Node, name: str, eps: float) -> Node:
    """The layer norm `name` with its bias, where it has one."""
    return weights.g.layer_norm(x, weights[name], weights.get(f"{name}.bias"), eps, name)


def gelu_ffn(layer: Layer, x_TD: Node, erf: bool = False) -> Node:
    """Feed-forward with GELU, in its tanh form or by the error function."""
    return plain_ffn(layer.g, layer, x_TD, Builder.gelu_erf if erf else Builder.gelu)


def attend(
    g: Builder, config: Config, layer: Layer, x_TD: Node, scale: float | None = None, max_bias: float = 0.0
) -> Node:
    """Attention without rotation, [T, N * H]; scale: config's if None; max_bias: of ALiBi."""
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, scale or config.scale, max_bias=max_bias)


attend_rotated = partial(attention, mode="neox")
"""Attention of queries and keys rotated in halves; a table of None is no rotation."""


def decoder(weights: Tensors, config: Config, x_TD: Node, attention: Part, ffn: Part | None = None) -> Node:
    """Logits [O, vocabulary]: attention, then feed-forward, each of a norm and added to the residual.

    ffn: GELU's if None.
    """
    g, ffn = weights.g, ffn or partial(gelu_ffn, erf=config.gelu_erf)
    for layer in weights.layers(config.n_layer):
        h_TD = attention(layer, norm(layer, x_TD, "attn_norm", config.norm_eps))
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_output", "attn_out"), "attn_residual")
        h_TD = ffn(layer, norm(layer, x_TD, "ffn_norm", config.norm_eps))
        x_TD = g.add(x_TD, h_TD, "ffn_residual")
    return weights.logits(norm(weights, x_TD, "output_norm", config.norm_eps))
