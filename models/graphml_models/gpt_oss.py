"""gpt-oss (OpenAI 2025, arXiv:2508.10925): experts and attention sinks.

Experts have biases; every other layer sees a window of the text.

T tokens, D model width, N heads, H head width, E experts, U used per token.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, _windows, llama
from graphml_models._attention import rotated_heads
from graphml_models._experts import Chosen
from graphml_models._rope import read_rounded
from graphml_models._samples import transformer
from graphml_models._windows import read_local_rope, read_windows, tables_by_layer

LIMIT = 7.0  # of the gate from above and of what it gates on both sides


class Config(_windows.Config):
    """As of every decoder of which some layers see a window."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        known = replace(known, rope=read_rounded(keys, known.rope))
        return cls(
            **vars(known),
            windows=read_windows(keys, known.n_layer, period=2),
            local_rope=read_local_rope(keys, known.rope),
        )


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention with a sink in each head before its output projection, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "neox")
    window, sinks = config.windows[layer.index], layer["attn_sinks"]
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, window=window, sinks=sinks)


def experts(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Experts weighted by the softmax over those chosen alone, [T, D]."""
    scores_TE = layer.linear(x_TD, "ffn_gate_inp", "router")
    ids_TU = g.top_k(scores_TE, config.n_expert_used, "experts")
    weights_TU = g.softmax(g.gather(scores_TE, ids_TU), "expert_weights")
    chosen = Chosen(g, layer, ids_TU, weights_TU)
    return chosen.combine(chosen.gated(x_TD, swiglu_oai))


def swiglu_oai(g: Builder, gate: Node, up: Node) -> Node:
    """GELU of the gate, held from above, times 1 + what it lets through, held on both sides."""
    gate, up = g.clamp(gate, float("-inf"), LIMIT), g.clamp(up, -LIMIT, LIMIT)
    return g.mul(g.gelu_quick(gate), g.scale(up, 1.0, offset=1.0), "swiglu_oai")


build = partial(
    llama.build, attention=attention, feed_forward=experts, ffn_norm="post_attention_norm",
    tables=tables_by_layer,
)  # fmt: skip


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests, its window shorter than what the tests feed."""
    more = {"post_attention_norm.weight": (64,), "attn_sinks.weight": (4,)}
    keys = {"attention.sliding_window": 11, "rope.freq_base_swa": 500.0}
    return [
        transformer(name, n_expert=5, biases=True, layer=more, without=("ffn_norm.weight",), metadata=keys)
    ]
