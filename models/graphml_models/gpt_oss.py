"""gpt-oss (OpenAI 2025, arXiv:2508.10925): experts and attention sinks.

Experts have biases; every other layer sees a window of the text.

T tokens, O rows whose logits are wanted, D model width, N heads, H head width, E experts, U used per token, F
hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.engine.architecture import Keys, Layer, SampleModel, Tensors
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml_models import _config
from graphml_models._attention import project, rotate
from graphml_models._experts import Chosen
from graphml_models._rope import Rope
from graphml_models._samples import transformer
from graphml_models._windows import read_local_rope, read_windows, rope_tables

LIMIT = 7.0  # of the gate from above and of what it gates on both sides


@dataclass(frozen=True)
class Config(_config.Config):
    """As of every decoder; windows: how many tokens each layer sees, 0 if all; local_rope: of such layers."""

    windows: tuple[int, ...]
    local_rope: Rope

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        shared = _config.shared(keys)
        return cls(
            **shared,
            windows=read_windows(keys, shared["n_layer"], period=2),
            local_rope=read_local_rope(keys, shared["rope"]),
        )


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    tables = rope_tables(g, weights, config.rope, config.local_rope)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        h_TD = attention(g, config, layer, tables[config.windows[layer.index] > 0], h_TD)
        x_TD, h_TD = layer.wanted(x_TD), layer.wanted(h_TD)
        x_TD = g.add(x_TD, layer.linear(h_TD, "attn_output", "attn_out"), "attn_residual")
        h_TD = g.rms_norm(x_TD, layer["post_attention_norm"], config.norm_eps, "ffn_norm")
        x_TD = g.add(x_TD, experts(g, config, layer, h_TD), "ffn_residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention with a sink in each head before its output projection, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD)
    q_TNH, k_TKH = rotate(g, table, "neox", q_TNH, k_TKH)
    window, sinks = config.windows[layer.index], layer["attn_sinks"]
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, window=window, sinks=sinks)


def experts(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Experts weighted by the softmax over those chosen alone, [T, D]."""
    scores_TE = layer.linear(x_TD, "ffn_gate_inp", "router")
    ids_TU = g.top_k(scores_TE, config.n_expert_used, "experts")
    weights_TU = g.softmax(g.gather(scores_TE, ids_TU), "expert_weights")
    chosen = Chosen(g, layer, ids_TU, weights_TU)
    gate_TUF = g.clamp(chosen.linear(x_TD, "ffn_gate_exps"), float("-inf"), LIMIT)
    up_TUF = g.clamp(chosen.linear(x_TD, "ffn_up_exps"), -LIMIT, LIMIT)
    h_TUF = g.mul(g.gelu_quick(gate_TUF), g.scale(up_TUF, 1.0, offset=1.0), "swiglu_oai")
    return chosen.combine(chosen.linear(h_TUF, "ffn_down_exps"))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests, its window shorter than what the tests feed."""
    more = {"post_attention_norm.weight": (64,), "attn_sinks.weight": (4,)}
    keys = {"attention.sliding_window": 11, "rope.freq_base_swa": 500.0}
    return [
        transformer(name, n_expert=5, biases=True, layer=more, without=("ffn_norm.weight",), metadata=keys)
    ]
