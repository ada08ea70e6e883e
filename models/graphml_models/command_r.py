"""Command R (Cohere 2024): attention and feed-forward side by side behind one layer norm.

T tokens, O output rows, D model width, N heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeVar

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config
from graphml_models._attention import project, rotate
from graphml_models._ffn import gated_ffn
from graphml_models._samples import transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """And the factor of the logits."""

    logit_scale: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata; 0 stands for 1."""
        known = _config.read(keys, eps=_config.LAYER_EPS)
        return cls(**vars(known), logit_scale=keys.number("logit_scale", 0.0) or 1.0)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, [T, N * H]; the large model has a layer norm for each head of q and k."""
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD)
    q_norm, k_norm = layer.get("attn_q_norm"), layer.get("attn_k_norm")
    if q_norm is not None:
        q_TNH = g.layer_norm(q_TNH, g.dequantize(q_norm), None, config.norm_eps, "q_norm")
    if k_norm is not None:
        k_TKH = g.layer_norm(k_TKH, g.dequantize(k_norm), None, config.norm_eps, "k_norm")
    q_TNH, k_TKH = rotate(g, table, "norm", q_TNH, k_TKH)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)


C = TypeVar("C", bound=Config)
Attention = Callable[[Builder, C, Layer, Node, Node], Node]


def build(
    g: Builder, config: C, weights: Tensors, attention: Attention[C] = attention, scaled: bool = False
) -> Node:
    """Logits [O, vocabulary]; scaled: see `Tensors.scale`."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        n_TD = g.layer_norm(x_TD, layer["attn_norm"], None, config.norm_eps, "attn_norm")
        h_TD = attention(g, config, layer, table, n_TD)
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_output", "attn_out"), "attn_residual")
        x_TD = g.add(x_TD, gated_ffn(g, layer, n_TD, scaled=scaled), "ffn_residual")
    x_TD = g.layer_norm(x_TD, weights["output_norm"], None, config.norm_eps, "output_norm")
    return g.scale(weights.logits(x_TD, "unscaled"), config.logit_scale, name="logits")


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    norms = {"attn_q_norm.weight": (4, 16), "attn_k_norm.weight": (2, 16)}
    keys, absent = {"logit_scale": 0.25}, ("ffn_norm.weight",)
    return [transformer(name, tied=True, layer_norm=True, without=absent, metadata=keys),
            transformer(name, "large", tied=True, layer_norm=True, without=absent, layer=norms)]  # fmt: skip
