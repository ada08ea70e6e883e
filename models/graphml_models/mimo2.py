"""MiMo-V2-Flash (Xiaomi 2025, "MiMo-V2-Flash"): windows, sinks, and experts chosen by sigmoid.

Layers may differ in heads; values are narrower than keys. T tokens, O output rows, N heads, V width of a
head's values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _ahead, _config, _routing, _windows, llama
from graphml_models._attention import project, rotate
from graphml_models._config import Heads, with_heads
from graphml_models._routing import SIGMOID, Routing, shared_and_chosen
from graphml_models._samples import DENSE_FIRST, Metadata, Shapes, dense_layers, transformer
from graphml_models._windows import PATTERN, read_local_rope, read_windows, tables_by_layer


@dataclass(frozen=True)
class Config(_routing.Config, _windows.Config):
    """And heads, windows and ropes by layer, the width of values and the factor of what attention gives.

    heads, windows: of the layer that predicts further, too.
    """

    heads: tuple[Heads, ...]
    head_dim_v: int
    value_scale: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        heads = _config.read_heads(keys)
        known = _config.read(keys, heads=heads[-1])
        windows = read_windows(keys, known.n_layer, period=1)
        if keys.integer(_config.N_AHEAD, 0):
            heads, windows = _with_ahead(keys, heads, windows)
        return cls(
            **vars(known),
            routing=replace(Routing.read(keys, SIGMOID), normalise=True),
            heads=heads,
            windows=windows,
            local_rope=read_local_rope(keys, known.rope, 10000.0),
            head_dim_v=keys.integer("attention.value_length", known.head_dim),
            value_scale=keys.number("attention.value_scale", 0.0) or 1.0,
        )


def _with_ahead(
    keys: Keys, heads: tuple[Heads, ...], windows: tuple[int, ...]
) -> tuple[tuple[Heads, ...], tuple[int, ...]]:
    """And those of the layer that predicts further: the file's, or else of the last layer with a window."""
    n_layer = len(heads)
    like = max((i for i, window in enumerate(windows) if window), default=n_layer - 1)

    def own(key: str, n_heads: int) -> int:
        n_all = keys.integer("block_count")
        return keys.integers(key, n_all)[n_layer] if keys.length(key) == n_all else n_heads

    n_head = own("attention.head_count", heads[like].n_head)
    n_head_kv = own("attention.head_count_kv", heads[like].n_head_kv)
    window = windows[like] if own(PATTERN, windows[like]) else 0
    return (*heads, Heads(n_head, n_head_kv)), (*windows, window)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, with a sink in each head of some layers, [T, N * V]."""
    config = with_heads(config, config.heads[layer.index])
    q_TNH, k_TKH, v_TKV = project(g, config, layer, x_TD, head_dim_v=config.head_dim_v)
    q_TNH, k_TKH = rotate(g, table, "neox", q_TNH, k_TKH)
    window, sinks = config.windows[layer.index], layer.get("attn_sinks")
    y_TD = g.attend(q_TNH, k_TKH, v_TKV, layer.index, config.scale, window, sinks=sinks)
    return y_TD if config.value_scale == 1.0 else g.scale(y_TD, config.value_scale, name="values_scaled")


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]; biases and scales of queries, keys and values are left out, as in llama.cpp."""
    return llama.build(g, config, _kept(weights), attention, shared_and_chosen, tables=tables_by_layer)


def ahead(g: Builder, config: Config, weights: Tensors, hidden_TD: Node) -> Node:
    """See `_ahead.build`: mostly a layer with a window, and the rope of those."""
    own, window = config.heads[config.n_layer], config.windows[config.n_layer]
    rope = config.local_rope if window else config.rope
    config = replace(config, heads=(own,), windows=(window,), rope=rope)
    return _ahead.build(g, config, _kept(weights), hidden_TD, attention, shared_and_chosen)


def _kept(weights: Tensors) -> Tensors:
    return weights.without("*.attn_[qkv].bias").without("*.attn_[qkv].scale")


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: a first layer with other heads, then one with a window and sinks."""
    keys: Metadata = {
        "attention.head_count": [2, 4], "attention.head_count_kv": [1, 2], "attention.key_length": 16,
        "attention.value_length": 8, "attention.value_scale": 0.7, "attention.sliding_window": 20,
        PATTERN: [0, 1], "rope.freq_base_swa": 500.0, "rope.dimension_count": 8,
    }  # fmt: skip
    layer = {"attn_v.weight": (16, 64), "attn_output.weight": (64, 32), "exp_probs_b.bias": (5,)}
    first: Shapes = {"attn_q.weight": (32, 64), "attn_k.weight": (16, 64), "attn_v.weight": (8, 64),
             "attn_output.weight": (64, 16)}  # fmt: skip
    top: Shapes = {f"blk.0.{part}": shape for part, shape in first.items()}
    top |= {**DENSE_FIRST["top"], "blk.1.attn_sinks.weight": (4,)}
    model = transformer(name, n_expert=5, layer=layer, metadata=keys, top=top,
                        without=DENSE_FIRST["without"])  # fmt: skip
    dense = dense_layers(1)
    own = {key.removeprefix("blk.1."): shape for key, shape in dense["top"].items()}
    gone = tuple(key.removeprefix("blk.1.") for key in dense["without"])
    by_layer: Metadata = {
        "attention.head_count": [2, 4, 4],
        "attention.head_count_kv": [1, 2, 2],
        PATTERN: [0, 1, 1],
    }
    return [model, _ahead.sample(name, model, keys=by_layer, other=own, without=gone)]
