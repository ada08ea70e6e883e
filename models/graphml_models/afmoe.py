"""Trinity (Arcee AI 2025, "Arcee Trinity"): DeepSeek-V3's experts, a gate on attention's output, windows.

Norms before and behind the blocks. T tokens, D model width, N heads, H
head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _routing
from graphml_models._attention import norm_heads, rotated_heads
from graphml_models._rope import Rope
from graphml_models._routing import SIGMOID, Routing, shared_and_chosen
from graphml_models._samples import DENSE_FIRST, HEAD_NORMS, POST_NORMS, shared_expert, transformer
from graphml_models._windows import PATTERN, read_local_rope, read_windows, rope_tables

NO_ROPE = 4  # every so many layers there is one without positions


@dataclass(frozen=True)
class Config(_routing.Config):
    """And windows of the layers, and the rope of those that have one."""

    windows: tuple[int, ...]
    local_rope: Rope

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        windows = read_windows(keys, known.n_layer, period=4, size=0)
        local = read_local_rope(keys, known.rope)
        return cls(**vars(known), routing=Routing.read(keys, SIGMOID), windows=windows, local_rope=local)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""

    def norm(tensors: Tensors, x: Node, name: str) -> Node:
        return g.rms_norm(x, tensors[name], config.norm_eps, name)

    tables = rope_tables(g, weights, config.rope, config.local_rope)
    x_TD = g.scale(g.embed(weights["token_embd"], g.tokens), config.n_embd**0.5, name="embedded")
    for layer in weights.layers(config.n_layer):
        table = tables[config.windows[layer.index] > 0]
        h_TD = attention(g, config, layer, table, norm(layer, x_TD, "attn_norm"))
        h_TD = norm(layer, layer.linear(h_TD, "attn_output", "attn_out"), "post_attention_norm")
        x_TD = g.add(x_TD, h_TD, "attn_residual")
        h_TD = shared_and_chosen(g, config, layer, norm(layer, x_TD, "ffn_norm"))
        x_TD = g.add(x_TD, norm(layer, h_TD, "post_ffw_norm"), "ffn_residual")
    return weights.logits(norm(weights, x_TD, "output_norm"))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over normed heads, gated, before its output projection, [T, N * H]."""
    rope = table if (layer.index + 1) % NO_ROPE else None
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, rope, x_TD, "neox", norm_heads)
    y_TD = g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, config.windows[layer.index])
    return g.mul(y_TD, g.sigmoid(layer.linear(x_TD, "attn_gate", "attn_gate", scaled=False)), "gated")


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with a window shorter than the texts it reads."""
    layer = {
        **shared_expert(),
        **HEAD_NORMS,
        **POST_NORMS,
        "exp_probs_b.bias": (5,),
        "attn_gate.weight": (64, 64),
    }
    keys = {
        "expert_weights_norm": True,
        "expert_weights_scale": 2.8,
        "attention.sliding_window": 20,
        PATTERN: 4,
    }
    return [transformer(name, n_expert=5, n_layer=4, layer=layer, metadata=keys, **DENSE_FIRST)]
