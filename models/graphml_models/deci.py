"""Llama-Nemotron (Bercovich et al. 2025, arXiv:2505.00949): llama with layers pruned one by one.

A layer may have fewer heads, a matrix in place of attention, no attention or no feed-forward. T tokens, O
output rows, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading import architecture
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import _config, llama
from graphml_models._ffn import gated_ffn
from graphml_models._samples import Keys, transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """As of every decoder; heads: of queries and of keys and values, for each layer."""

    heads: tuple[tuple[int, int], ...]

    @classmethod
    def read(cls, keys: architecture.Keys) -> Self:
        """From the file's metadata."""
        heads = _config.read_heads(keys)
        most = max(n_head for n_head, _ in heads), max(n_head_kv for _, n_head_kv in heads)
        return cls(**_config.shared(keys, heads=most), heads=heads)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        n_head, n_head_kv = config.heads[layer.index]
        if n_head:
            h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
            if n_head_kv:
                heads = replace(config, n_head=n_head, n_head_kv=n_head_kv)
                h_TD = llama.attention(g, heads, layer, table, h_TD)
            h_TD = layer.linear(h_TD, "attn_output", "attn_out")
            x_TD = g.add(x_TD, h_TD, "attn_residual")
        if layer.get("ffn_up", "ffn_gate", "ffn_down"):
            h_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
            x_TD = g.add(x_TD, gated_ffn(g, layer, h_TD), "ffn_residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with a layer of every kind."""
    keys: Keys = {"attention.head_count": [4, 4, 0, 4, 2], "attention.head_count_kv": [2, 0, 0, 4, 1]}
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
