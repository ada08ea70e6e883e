"""Gemma 4's assistants (Gemma Team 2026): small layers that draft by the keys and values of the model itself.

A layer attends to what the model's last layer with a window has kept, or its last one that sees all, so that
the drafter keeps nothing. All ids of a draft have the position of the first: the next one that the model will
compute. After llama.cpp. T tokens, O output rows, D width, W width of the model, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import MODELS_EMBEDDING, Keys, Layer, Tensors
from graphml.loading.named_tensors import output_rows
from graphml_models import _config, _windows
from graphml_models._config import Heads
from graphml_models._ffn import gated_ffn
from graphml_models._rope import Rope
from graphml_models._windows import SIZE, read_windows

FORM = "cells"
UNREAD = ("masked_embd_centroids.weight", "masked_embd_ordering")
"""Tensors for logits of some ids alone; as in llama.cpp, all have theirs."""


@dataclass(frozen=True)
class Config(_windows.Config):
    """heads: of each layer; local_dim: their width in layers with a window; n_embd_target: the model's W."""

    heads: tuple[int, ...]
    local_dim: int
    n_embd_target: int

    @property
    def target_layers(self) -> tuple[int, ...]:
        """None: it reads the rows of the logits."""
        return ()

    def width(self, layer: int) -> int:
        """Of a layer's heads, H."""
        return self.local_dim if self.windows[layer] else self.head_dim

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys, heads=Heads(1, 1), all_layers=True)
        n_layer, local_dim = known.n_layer, keys.integer("attention.key_length_swa", known.head_dim)
        if keys.integer(_config.N_AHEAD) != n_layer:
            raise keys.unsupported(_config.N_AHEAD, f"all {n_layer} layers")
        for key, width in (("value_length", known.head_dim), ("value_length_swa", local_dim)):
            if width < 1 or keys.integer(f"attention.{key}", width) != width:
                raise keys.unsupported(f"attention.{key}", f"{width}, as that of keys, and at least 1")
        if not keys.is_array(_windows.PATTERN):
            raise keys.unsupported(_windows.PATTERN, "a yes or no for each layer")
        windows = read_windows(keys, n_layer, period=0)
        if keys.integer(SIZE) < 2:
            raise keys.unsupported(SIZE, "at least 2 tokens")
        heads, n_embd_target = _config.by_layer(keys, "attention.head_count", n_layer), keys.integer(WIDTH)
        if min(heads) < 1:
            raise keys.unsupported("attention.head_count", "at least 1")
        if n_embd_target < 1:
            raise keys.unsupported(WIDTH, "at least 1")
        return cls(
            **vars(known),
            windows=windows,
            local_rope=Rope(
                n_rot=keys.integer("rope.dimension_count_swa", known.rope.n_rot),
                freq_base=keys.number("rope.freq_base_swa", 10000.0),
            ),
            heads=heads,
            local_dim=local_dim,
            n_embd_target=n_embd_target,
        )


WIDTH = "embedding_length_out"


def ahead(g: Builder, config: Config, weights: Tensors, hidden: Node) -> Node:
    """Logits [O, vocabulary] of what follows `g.tokens`; its row for the next step, [O, W], is hidden.

    hidden: [T, W], the rows of the logits of the tokens before those, or its own. The step's positions are
    those of the last tokens that the model has computed.
    """
    eps, width = config.norm_eps, config.n_embd_target
    e_TW = g.scale(g.embed(weights[MODELS_EMBEDDING], g.tokens), width**0.5, name="embedding_scaled")
    x_TD = weights.linear(g.concat(e_TW, hidden), "nextn.pre_projection", rows=config.n_embd)
    next_T = g.cast(g.add(g.cast(g.positions, "f32"), g.constant(1.0)), "i32")
    tables = {
        False: config.rope.at(g, next_T, "rope_table", weights.get("rope_freqs")),
        True: config.local_rope.at(g, next_T, "local_rope_table"),
    }

    def normed(layer: Layer, x: Node, name: str) -> Node:
        return g.rms_norm(x, layer[name], eps, name)

    for layer in weights.layers(config.n_layer):
        h_TD = attention(g, config, layer, tables, normed(layer, x_TD, "attn_norm"))
        h_TD = normed(layer, layer.linear(h_TD, "attn_output", "attn_out"), "post_attention_norm")
        x_TD = g.add(x_TD, h_TD, "attn_residual")
        h_TD = gated_ffn(g, layer, normed(layer, x_TD, "ffn_norm"), Builder.gelu)
        x_TD = g.add(x_TD, normed(layer, h_TD, "post_ffw_norm"), "ffn_residual")
        x_TD = g.mul(x_TD, layer["layer_output_scale"], "output_scaled")
    x_TD = g.rms_norm(x_TD, weights["output_norm"], eps, "output_norm")
    logits = weights.logits(x_TD, of="token_embd")
    g.hidden = weights.linear(output_rows(g, x_TD), "nextn.post_projection", rows=width)
    return logits


def attention(g: Builder, config: Config, layer: Layer, tables: dict[bool, Node], x_TD: Node) -> Node:
    """Queries on the model's keys and values, without a scale, [T, N * H].

    The window of the position behind the row's own has one token less here: it is not computed yet.
    """
    window, count = config.windows[layer.index], config.heads[layer.index]
    rows = count * config.width(layer.index)
    q_TNH = g.heads(layer.linear(x_TD, "attn_q", "q", rows=rows), count)
    q_TNH = g.rms_norm(q_TNH, layer["attn_q_norm"], config.norm_eps, "q_norm")
    q_TNH = g.rope(q_TNH, tables[window > 0], "neox", "q_rope")
    return g.attend(q_TNH, None, None, layer.index, 1.0, max(window - 1, 0))
