"""Mistral 7B (Jiang et al. 2023, arXiv:2310.06825): llama with a rope of halves, its layers seeing a window.

The architecture of folders of transformers, whose matrices it takes as they are. GGUF files of Mistral say
`llama`: they have other rows of q and k, and no window.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, llama
from graphml_models._attention import project, rotate
from graphml_models._samples import transformer
from graphml_models._windows import read_windows


@dataclass(frozen=True)
class Config(_config.Config):
    """And the windows of the layers, 0 where a layer sees all."""

    windows: tuple[int, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        return cls(**vars(known), windows=read_windows(keys, known.n_layer, period=0, size=0))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention over the window, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD)
    q_TNH, k_TKH = rotate(g, table, "neox", q_TNH, k_TKH)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, config.windows[layer.index])


build = partial(llama.build, attention=attention)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: a window shorter than the texts they read, and none."""
    return [
        transformer(name, "window", metadata={"attention.sliding_window": 40}),
        transformer(name, "whole"),
    ]
