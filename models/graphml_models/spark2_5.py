"""Spark 2.5 (iFLYTEK 2026, "Spark-X2.5"): llama with GELU gates, windows, and a gate on what each head gives.

T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, _windows, gemma, llama
from graphml_models._attention import rotated_heads
from graphml_models._samples import Metadata, transformer
from graphml_models._windows import PATTERN, read_local_rope, read_windows, tables_by_layer


class Config(_windows.Config):
    """As of every decoder of which some layers see a window."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        if not keys.is_array(PATTERN):
            raise keys.unsupported(PATTERN, "a yes or no for each layer")
        windows, local = read_windows(keys, known.n_layer, period=0), read_local_rope(keys, known.rope)
        local = replace(local, n_rot=keys.integer("rope.dimension_count_swa", local.n_rot))
        return cls(**vars(known), windows=windows, local_rope=local)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, each head gated, before its output projection, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "neox")
    y_TD = g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, config.windows[layer.index])
    return gate_heads(g, config.n_head, layer, x_TD, y_TD)


def gate_heads(g: Builder, n_head: int, layer: Layer, x_TD: Node, y_TD: Node) -> Node:
    """What each head gives, times a sigmoid of the layer's input, [T, N * H]."""
    gate_TN = g.sigmoid(layer.linear(x_TD, "attn_gate", "attn_gate", scaled=False, rows=n_head))
    return g.flatten(g.mul(g.heads(y_TD, n_head), g.heads(gate_TN, n_head), "gated"))


build = partial(llama.build, attention=attention, feed_forward=gemma.feed_forward, tables=tables_by_layer)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests: a layer with a window shorter than the texts it reads, and one without."""
    keys: Metadata = {"attention.sliding_window": 20, PATTERN: [1, 0], "rope.freq_base_swa": 500.0,
            "rope.dimension_count_swa": 8}  # fmt: skip
    return [transformer(name, tied=True, layer={"attn_gate.weight": (4, 64)}, metadata=keys)]
