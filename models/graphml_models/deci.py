"""Llama-Nemotron (Bercovich et al. 2025, arXiv:2505.00949): llama with layers pruned one by one.

A layer may have fewer heads, a matrix in place of attention, no attention or no feed-forward. T tokens, O
output rows, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, SampleModel, Tensors
from graphml_models import _config, llama
from graphml_models._config import Heads, with_heads
from graphml_models._ffn import gated_ffn
from graphml_models._samples import Metadata, transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """As of every decoder; heads: of each layer."""

    heads: tuple[Heads, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        heads = _config.read_heads(keys)
        most = Heads(
            max(layer_heads.n_head for layer_heads in heads),
            max(layer_heads.n_head_kv for layer_heads in heads),
        )
        known = _config.read(keys, heads=most)
        return cls(**vars(known), heads=heads)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        heads = config.heads[layer.index]
        if heads.n_head:
            h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
            if heads.n_head_kv:
                h_TD = llama.attention(g, with_heads(config, heads), layer, table, h_TD)
            h_TD = layer.linear(h_TD, "attn_output", "attn_out")
            x_TD = g.add(x_TD, h_TD, "attn_residual")
        if layer.get("ffn_up", "ffn_gate", "ffn_down"):
            h_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
            x_TD = g.add(x_TD, gated_ffn(g, layer, h_TD), "ffn_residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with a layer of every kind."""
    keys: Metadata = {"attention.head_count": [4, 4, 0, 4, 2], "attention.head_count_kv": [2, 0, 0, 4, 1]}
    keys["attention.key_length"] = 16
    gone = [f"blk.{layer}.attn_{name}.weight" for layer in (1, 2) for name in "qkv"]
    gone += ["blk.2.attn_norm.weight", "blk.2.attn_output.weight"]
    gone += [f"blk.3.ffn_{name}.weight" for name in ("gate", "up", "down", "norm")]
    key, few = (64, 64), (16, 64)
    other = {
        "blk.3.attn_k.weight": key,
        "blk.3.attn_v.weight": key,
        "blk.4.attn_q.weight": (32, 64),
        "blk.4.attn_k.weight": few,
        "blk.4.attn_v.weight": few,
        "blk.4.attn_output.weight": (64, 32),
    }
    return [transformer(name, n_layer=5, rope_factors=True, metadata=keys, top=other, without=tuple(gone))]
