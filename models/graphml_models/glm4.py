"""GLM-4 0414 (GLM Team 2024, arXiv:2406.12793): llama with norms before and after the blocks.

Gate and up are in one matrix. T tokens, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, llama, plamo3
from graphml_models._rope import read_sections
from graphml_models._samples import POST_NORMS, transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """And how the rope pairs dimensions."""

    rope_mode: str

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata: models that see pictures, too, have a rope of halves in sections."""
        known = _config.read(keys)
        return cls(**vars(known), rope_mode="neox" if read_sections(keys) else "norm")


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, [T, N * H]."""
    return llama.attention(g, config, layer, table, x_TD, config.rope_mode)


build = partial(llama.build, attention=attention, feed_forward=plamo3.feed_forward, norms="both")


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    layer = {**POST_NORMS, "ffn_up.weight": (192, 64)}
    keys = {"rope.dimension_count": 8}
    return [transformer(name, layer=layer, without=("ffn_gate.weight",), metadata=keys)]
