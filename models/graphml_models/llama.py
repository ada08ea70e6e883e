"""Llama and its kin (Touvron et al. 2023, arXiv:2302.13971), dense or with experts (Mixtral, 2401.04088).

T tokens, O rows whose logits are wanted, D model width, N heads, K key-value heads, H head width, F hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.engine.architecture import Keys, Layer, Tensors
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml_models._experts import swiglu_experts
from graphml_models._rope import Rope, read_rope
from graphml_models._samples import llama_like


@dataclass(frozen=True)
class Config:
    """What the metadata says of a llama model."""

    n_ctx: int
    n_vocab: int
    n_layer: int
    n_head: int
    n_head_kv: int
    norm_eps: float
    scale: float
    rope: Rope
    n_expert_used: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        n_ctx, n_head = keys.integer("context_length"), keys.integer("attention.head_count")
        n_head_kv = keys.integer("attention.head_count_kv", n_head)
        head_dim = keys.integer("attention.key_length", keys.integer("embedding_length") // n_head)
        eps = keys.number("attention.layer_norm_rms_epsilon")
        scale = keys.number("attention.scale", 0.0) or head_dim**-0.5
        sizes = n_ctx, keys.n_vocab(), keys.integer("block_count"), n_head, n_head_kv
        return cls(*sizes, eps, scale, read_rope(keys, head_dim, n_ctx), keys.integer("expert_used_count", 0))


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        h_TD = attention(g, config, layer, table, h_TD)
        if layer.is_last:  # from here on only the wanted rows matter
            x_TD, h_TD = g.rows(x_TD, g.wanted), g.rows(h_TD, g.wanted)
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_output", "attn_out"), "attn_residual")
        h_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        used = config.n_expert_used
        h_TD = swiglu_experts(g, layer, h_TD, used) if used else ffn(g, layer, h_TD)
        x_TD = g.add(x_TD, h_TD, "ffn_residual")
    x_OD = g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm")
    return weights.linear(x_OD, "output" if weights.get("output") else "token_embd", "logits")


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention before its output projection, [T, N * H]."""
    q_TNH = g.heads(layer.linear(x_TD, "attn_q", "q"), config.n_head)
    k_TKH = g.heads(layer.linear(x_TD, "attn_k", "k"), config.n_head_kv)
    v_TKH = g.heads(layer.linear(x_TD, "attn_v", "v"), config.n_head_kv)
    q_TNH, k_TKH = g.rope(q_TNH, table, "norm", "q_rope"), g.rope(k_TKH, table, "norm", "k_rope")
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale)


def ffn(g: Builder, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU feed-forward."""
    gate_TF, up_TF = (layer.linear(x_TD, f"ffn_{name}", name, scale_last=True) for name in ("gate", "up"))
    return layer.linear(g.mul(g.silu(gate_TF), up_TF, "swiglu"), "ffn_down", "down", scale_last=True)


sample = llama_like  # tiny models for tests
