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
from graphml_models import _config, llama
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
        _config.constants(keys, ())
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
    g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node, scale: float | None = None,
    max_bias: float = 0.0,
) -> Node:  # fmt: skip
    """Attention without rotation, [T, N * H]; table: unread; scale: config's if None; max_bias: of ALiBi."""
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, scale or config.scale, max_bias=max_bias)


attend_rotated = partial(attention, mode="neox")
"""Attention of queries and keys rotated in halves; a table of None is no rotation."""


def no_tables(g: Builder, config: _config.Config, weights: Tensors) -> list[Node]:
    """Something in place of each layer's rope table, as nothing is rotated."""
    return [g.positions] * config.n_layer


def layer_norm(g: Builder, config: _config.Config, tensors: Tensors, x: Node, tensor: str, name: str) -> Node:
    """As `norm`; name: of the node."""
    return g.layer_norm(x, tensors[tensor], tensors.get(f"{tensor}.bias"), config.norm_eps, name)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Feed-forward with the config's GELU."""
    return gelu_ffn(layer, x_TD, config.gelu_erf)


build = partial(llama.build, attention=attend_rotated, feed_forward=feed_forward, norm=layer_norm)
"""llama's decoder with layer norms, heads rotated in halves, and GELU."""
