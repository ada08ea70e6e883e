"""Granite with windows (IBM 2026): granite of which some layers see a window or have no positions; sinks.

T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, granite
from graphml_models._attention import rotated_heads
from graphml_models._experts import swiglu_experts
from graphml_models._ffn import gated_ffn, halved_ffn
from graphml_models._samples import Metadata, Shapes, transformer
from graphml_models._windows import PATTERN, WindowConfig, read_windows


@dataclass(frozen=True)
class Config(granite.Config, WindowConfig):
    """And windows, and which layers have positions."""

    rotates: tuple[int, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        windows = read_windows(keys, known.n_layer, period=1)
        rotates = _config.by_layer(keys, "attention.rope_pattern", known.n_layer, 1)
        scales = granite.Scales.read(keys)
        return cls(**vars(known), scales=scales, positions=True, windows=windows, rotates=rotates)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention with a sink in each head, [T, N * H]."""
    rope = table if config.rotates[layer.index] else None
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, rope, x_TD, "norm")
    window, sinks = config.windows[layer.index], layer["attn_sinks"]
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, window, sinks=sinks)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU, dense or with experts, one of which may be shared, its gate and up in one matrix."""
    if not config.n_expert_used:
        return gated_ffn(g, layer, x_TD)
    chosen_TD = swiglu_experts(g, layer, x_TD, config.n_expert_used)
    if layer.get("ffn_up_shexp", "ffn_down_shexp") is None:
        return chosen_TD
    return g.add(chosen_TD, halved_ffn(g, layer, x_TD, suffix="_shexp"), "experts_and_shared")


build = partial(granite.build, mixer=attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: a layer with a window shorter than the texts it reads, one without positions."""
    keys: Metadata = {
        "logit_scale": 4.0, "residual_scale": 0.5, "embedding_scale": 3.0, "attention.sliding_window": 20,
        PATTERN: [1, 0], "attention.rope_pattern": [1, 0],
    }  # fmt: skip
    sinks: Shapes = {"attn_sinks.weight": (4,)}
    shared: Shapes = {"ffn_up_shexp.weight": (64, 64), "ffn_down_shexp.weight": (64, 32)}
    return [transformer(name, tied=True, metadata=keys, layer=sinks),
            transformer(name, "experts", n_expert=5, metadata=keys, layer=sinks | shared)]  # fmt: skip
