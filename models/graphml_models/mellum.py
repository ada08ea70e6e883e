"""Mellum 2 (JetBrains 2026): qwen3moe, three of four layers with a window and a rope that is not scaled.

T tokens, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, _windows, llama
from graphml_models._attention import norm_heads, project, rotate
from graphml_models._samples import HEAD_NORMS, Metadata, transformer
from graphml_models._windows import PATTERN, read_windows, tables_by_layer


class Config(_windows.Config):
    """As of every decoder of which some layers see a window."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        windows = read_windows(keys, known.n_layer, period=4, size=0)
        local_rope = replace(known.rope, scaled=False, long=False)
        return cls(**vars(known), windows=windows, local_rope=local_rope)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over normed heads, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD)
    q_TNH, k_TKH = norm_heads(g, config, layer, q_TNH, k_TKH)
    q_TNH, k_TKH = rotate(g, table, "neox", q_TNH, k_TKH)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, config.windows[layer.index])


build = partial(llama.build, attention=attention, tables=tables_by_layer)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with a window shorter than the texts it reads."""
    keys: Metadata = {
        "attention.sliding_window": 20,
        PATTERN: 2,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
    }
    return [transformer(name, n_expert=5, layer=HEAD_NORMS, metadata=keys)]
