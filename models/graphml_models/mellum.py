"""Mellum 2 (JetBrains 2026): qwen3moe, three of four layers with a window and a rope that is not scaled.

T tokens, O rows whose logits are wanted, D model width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.engine.architecture import Keys, Layer, SampleModel, Tensors
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml_models import _config
from graphml_models._attention import norm_heads, project, rotate
from graphml_models._experts import swiglu_experts
from graphml_models._rope import Rope
from graphml_models._samples import HEAD_NORMS, transformer
from graphml_models._windows import PATTERN, read_windows, rope_tables


@dataclass(frozen=True)
class Config(_config.Config):
    """And windows of the layers, and the rope of those that have one."""

    windows: tuple[int, ...]
    local_rope: Rope

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.shared(keys)
        rope = known["rope"]
        local = Rope(rope.n_rot, {"freq_base": rope.scaling["freq_base"]})
        windows = read_windows(keys, known["n_layer"], period=4, size=0)
        return cls(**known, windows=windows, local_rope=local)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    tables = rope_tables(g, weights, config.rope, config.local_rope)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        h_TD = attention(g, config, layer, tables[config.windows[layer.index] > 0], h_TD)
        x_TD, h_TD = layer.wanted(x_TD), layer.wanted(h_TD)
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_output", "attn_out"), "attn_residual")
        h_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        h_TD = swiglu_experts(g, layer, h_TD, config.n_expert_used, scaled=True)
        x_TD = g.add(x_TD, h_TD, "ffn_residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over normed heads, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD)
    q_TNH, k_TKH = norm_heads(g, config, layer, q_TNH, k_TKH)
    q_TNH, k_TKH = rotate(g, table, "neox", q_TNH, k_TKH)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, config.windows[layer.index])


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with a window shorter than the texts it reads."""
    keys: dict[str, int | float | str | list[int]] = {
        "attention.sliding_window": 20,
        PATTERN: 2,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
    }
    return [transformer(name, n_expert=5, layer=HEAD_NORMS, metadata=keys)]
