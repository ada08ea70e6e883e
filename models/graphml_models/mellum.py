"""Mellum 2 (JetBrains 2026): qwen3moe, three of four layers with a window and a rope that is not scaled.

T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _windows, llama, qwen3moe
from graphml_models._attention import norm_heads
from graphml_models._ffn import gated_ffn
from graphml_models._samples import HEAD_NORMS, Metadata, transformer
from graphml_models._windows import PATTERN, read_local_rope, read_windows, tables_by_layer


@dataclass(frozen=True)
class Config(qwen3moe.Config, _windows.Config):
    """As of qwen3moe, and of every decoder of which some layers see a window."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = qwen3moe.Config.read(keys)
        known = replace(known, windows=read_windows(keys, known.n_layer, period=4, size=0))
        local_rope = replace(read_local_rope(keys, known.rope, scaled=False), long=None)
        return cls(**vars(known), local_rope=local_rope)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Experts, or SwiGLU in layers without a router, [T, D]."""
    if layer.get("ffn_gate_inp") is None:
        return gated_ffn(g, layer, x_TD, scaled=True)
    return qwen3moe.feed_forward(g, config, layer, x_TD)


build = partial(
    llama.build,
    attention=partial(_windows.attention, norm=norm_heads),
    feed_forward=feed_forward,
    tables=tables_by_layer,
)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with a window shorter than the texts it reads."""
    keys: Metadata = {
        "attention.sliding_window": 20,
        PATTERN: 2,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
    }
    return [transformer(name, n_expert=5, layer=HEAD_NORMS, metadata=keys)]
