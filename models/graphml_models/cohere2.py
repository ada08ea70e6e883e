"""Command R7B (Cohere 2024): command-r of which most layers see a window; others have no positions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, command_r
from graphml_models._attention import rotated_heads
from graphml_models._samples import transformer
from graphml_models._windows import WindowConfig, read_windows


@dataclass(frozen=True)
class Config(command_r.Config, WindowConfig):
    """As of Command R, with windows."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys, eps=_config.LAYER_EPS)
        windows = read_windows(keys, known.n_layer, period=4)
        return cls(**vars(known), logit_scale=keys.number("logit_scale") or 1.0, windows=windows)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, [T, N * H]."""
    window = config.windows[layer.index]
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table if window else None, x_TD, "norm")
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, window)


build = partial(command_r.build, attention=attention, scaled=True)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: windows shorter than the texts they read, the fourth layer without one."""
    keys = {"logit_scale": 0.25, "attention.sliding_window": 20}
    absent = ("ffn_norm.weight",)
    return [transformer(name, tied=True, layer_norm=True, without=absent, metadata=keys, n_layer=4)]
