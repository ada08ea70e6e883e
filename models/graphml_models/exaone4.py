"""EXAONE 4 (LG AI Research 2025, arXiv:2507.11407): norms behind the blocks and on heads; windows.

T tokens, D model width, N heads, K key-value heads, H head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _windows, llama
from graphml_models._attention import norm_heads, rotated_heads
from graphml_models._samples import HEAD_NORMS, POST_NORMS, transformer
from graphml_models._windows import PATTERN, read_local_rope, read_windows


class Config(_windows.Config):
    """Where some layers have a window, the others rotate no heads: they have no positions."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata; a model of 64 layers has windows, and one whose metadata list them."""
        known = _config.read(keys)
        n_layer = known.n_layer
        large = n_layer == 64 or keys.has(PATTERN)
        windows = read_windows(keys, n_layer, period=4, size=4096) if large else (0,) * n_layer
        return cls(**vars(known), windows=windows, local_rope=read_local_rope(keys, known.rope))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over normed heads, [T, N * H]."""
    window = config.windows[layer.index]
    rope = table if window or not any(config.windows) else None
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, rope, x_TD, "neox", norm_heads)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, window)


def tables(g: Builder, config: Config, weights: Tensors) -> Sequence[Node]:
    """The same rope table for every layer."""
    return [(config.local_rope if any(config.windows) else config.rope).table(g, weights)] * config.n_layer


feed_forward = partial(llama.feed_forward, scaled=False)
build = partial(llama.build, attention=attention, feed_forward=feed_forward, tables=tables, norms="after")


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, the large one with windows shorter than the texts they read."""
    layer = {**POST_NORMS, **HEAD_NORMS}
    before = ("attn_norm.weight", "ffn_norm.weight")
    keys = {"attention.sliding_window": 20, PATTERN: 2}
    shared = partial(transformer, name, layer=layer, without=before)
    return [shared("small", rope_factors=True), shared("large", metadata=keys)]
