"""MPT (MosaicML 2023, "Introducing MPT-7B"): ALiBi, held queries, keys and values, and no bias anywhere.

Some have learned positions, norms of queries and keys, or divisors of the activation (AWQ, arXiv:2306.00978).
Letters as in `_layer_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _layer_norm, gpt2, llama
from graphml_models._attention import project
from graphml_models._ffn import plain_ffn
from graphml_models._layer_norm import no_tables, norm, read_gelu_erf
from graphml_models._samples import layer_norm_transformer


@dataclass(frozen=True)
class Config(_layer_norm.Config):
    """As of the family; max_bias: of ALiBi; clamp_kqv: bound of queries, keys and values, 0 if none."""

    max_bias: float
    clamp_kqv: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys, eps=_config.LAYER_EPS)
        return cls(
            **vars(known),
            gelu_erf=read_gelu_erf(keys),
            max_bias=keys.number("attention.max_alibi_bias", 0.0),
            clamp_kqv=keys.number("attention.clamp_kqv", 0.0),
        )


def embedded(g: Builder, config: Config, weights: Tensors) -> Node:
    """The rows of the tokens, and of their positions where these are learned, [T, D]."""
    embed = gpt2.embedded if weights.get("position_embd") else llama.embedded
    return embed(g, config, weights)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention with ALiBi before its output projection, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD, config.clamp_kqv)
    if layer.get("attn_q_norm"):  # each of all heads at once
        q_TD = norm(layer, g.flatten(q_TNH), "attn_q_norm", config.norm_eps)
        k_TE = norm(layer, g.flatten(k_TKH), "attn_k_norm", config.norm_eps)
        q_TNH, k_TKH = g.heads(q_TD, config.n_head), g.heads(k_TE, config.n_head_kv)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, max_bias=config.max_bias)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Feed-forward with GELU."""
    divisors = layer.get("ffn.act.scales")

    def activation(g: Builder, h_TF: Node) -> Node:
        h_TF = g.gelu_erf(h_TF) if config.gelu_erf else g.gelu(h_TF)
        return h_TF if divisors is None else g.div(h_TF, divisors)

    return plain_ffn(g, layer, x_TD, activation)


build = partial(
    _layer_norm.build, attention=attention, feed_forward=feed_forward, tables=no_tables, embed=embedded
)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    keys = {"attention.max_alibi_bias": 8.0}
    norms = {f"attn_{x}_norm.{kind}": (64,) for x in "qk" for kind in ("weight", "bias")}
    return [
        layer_norm_transformer(name, "plain", biases=False, tied=True, metadata=keys),
        layer_norm_transformer(name, "more", top={"position_embd.weight": (128, 64)},
                               layer=norms | {"ffn.act.scales": (96,)},
                               metadata=keys | {"attention.clamp_kqv": 0.5}),
    ]  # fmt: skip
