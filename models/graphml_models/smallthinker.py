"""SmallThinker (Song et al. 2025, arXiv:2507.20984): experts with ReLU, chosen before attention; windows.

Every fourth layer sees all and has no positions. T tokens, D model width, N
heads, H head width, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _routing
from graphml_models._attention import rotated_heads
from graphml_models._experts import route
from graphml_models._routing import Routing, shares
from graphml_models._samples import transformer
from graphml_models._windows import PATTERN, WindowConfig, read_local_rope, read_windows

NO_ROPE = 4  # where layers have windows, the first of so many has no positions


@dataclass(frozen=True)
class Config(_routing.Config, WindowConfig):
    """And windows of the layers; rope is that of layers with one."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        windows = read_windows(keys, known.n_layer, period=4, all_first=True, size=0)
        if any(windows):
            known = replace(known, rope=read_local_rope(keys, known.rope))
        return cls(**vars(known), routing=Routing.read(keys), windows=windows)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        scores_TE = layer.linear(x_TD, "ffn_gate_inp", "router")
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        h_TD = attention(g, config, layer, table, h_TD)
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_output", "attn_out"), "attn_residual")
        h_TD = g.rms_norm(x_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        x_TD = g.add(x_TD, experts(g, config, layer, scores_TE, h_TD), "ffn_residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention before its output projection, [T, N * H]."""
    rope = table if layer.index % NO_ROPE or not any(config.windows) else None
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, rope, x_TD, "neox")
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, config.windows[layer.index])


def experts(g: Builder, config: Config, layer: Layer, scores_TE: Node, x_TD: Node) -> Node:
    """ReLU-gated experts by the scores that the layer's input had, [T, D]."""
    chosen = route(g, layer, shares(g, config.routing.gating, scores_TE), config.routing.n_used)
    gate_TUF, up_TUF = chosen.linear(x_TD, "ffn_gate_exps"), chosen.linear(x_TD, "ffn_up_exps")
    return chosen.combine(chosen.linear(g.mul(g.relu(gate_TUF), up_TUF), "ffn_down_exps"))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: with windows shorter than the texts they read, and without."""
    keys = {"expert_gating_func": 2, "attention.sliding_window": 20, PATTERN: 2}
    return [transformer(name, "windows", n_expert=5, metadata=keys), transformer(name, "all", n_expert=5)]
