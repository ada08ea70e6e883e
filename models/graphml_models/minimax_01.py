"""MiniMax-01 (MiniMax 2025, arXiv:2501.08313): lightning attention, softmax in some layers, experts.

Residuals start from what is normed. T tokens, D model width, N heads, H head
width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, llama
from graphml_models._experts import swiglu_experts
from graphml_models._hybrid import hybrid, read_attending
from graphml_models._samples import Shapes

MEMORY_EPS = "lightning.layer_norm_rms_epsilon"  # of folders; in llama.cpp all norms have one


@dataclass(frozen=True)
class Config(_config.Config):
    """And which layers have softmax attention, the factor of the residuals, lightning attention's epsilon."""

    attends: tuple[bool, ...]
    residual_scale: float
    memory_eps: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        attends = read_attending(keys, interval=8)
        memory_eps = keys.number(MEMORY_EPS, known.norm_eps)
        scale = keys.number("residual_scale")
        return cls(**vars(known), attends=attends, residual_scale=scale, memory_eps=memory_eps)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        normed_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        attends = config.attends[layer.index]
        h_TD = (softmax if attends else lightning)(g, config, layer, table, normed_TD)
        h_TD = layer.linear(h_TD, "attn_output", "attn_out", scaled=attends)
        x_TD = g.add(h_TD, g.scale(normed_TD, config.residual_scale), "attn_residual")
        normed_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        h_TD = swiglu_experts(g, layer, normed_TD, config.n_expert_used)
        x_TD = g.add(h_TD, g.scale(normed_TD, config.residual_scale), "ffn_residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def softmax(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention before its output projection, [T, N * H]."""
    return llama.attention(g, config, layer, table, x_TD, mode="neox")


def lightning(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Linear attention that fades, slower in deeper layers, normed and gated, [T, N * H]."""
    width = config.head_dim
    qkv_TE = layer.linear(x_TD, "attn_qkv", "qkv", scaled=False, rows=3 * config.n_head * width)
    qkv_TNE = g.heads(g.silu(qkv_TE), config.n_head)
    q_TNH, k_TNH, v_TNH = (g.columns(qkv_TNE, i * width, (i + 1) * width) for i in range(3))
    slope = 1.0 - layer.index / max(config.n_layer - 1, 1) + 1e-5
    y_TE = g.flatten(g.linear_attention(q_TNH, k_TNH, v_TNH, layer.index, slope=slope))
    y_TE = g.rms_norm(y_TE, layer["attn_norm_2"], config.memory_eps, "attn_norm_2")
    return g.mul(y_TE, g.sigmoid(layer.linear(x_TD, "attn_gate", scaled=False)), "gated")


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    memory: Shapes = {"attn_qkv.weight": (192, 64), "attn_gate.weight": (64, 64), "attn_norm_2.weight": (64,),
                      "attn_output.weight": (64, 64)}  # fmt: skip
    return [
        hybrid(name, memory, {}, n_expert=5, metadata={"full_attention_interval": 2, "residual_scale": 3.5})
    ]
