"""Maple (2026): qwen3moe whose layers see a window or have no positions; what gates experts is held.

T tokens, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import exaone_moe, llama
from graphml_models._experts import clamped_swiglu, read_limits
from graphml_models._routing import shared_and_chosen
from graphml_models._samples import HEAD_NORMS, Metadata, transformer
from graphml_models._windows import PATTERN


@dataclass(frozen=True)
class Config(exaone_moe.Config):
    """And how far gates and what they let through may go in each layer's experts, 0 for no limit."""

    limits: tuple[float, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = exaone_moe.Config.read(keys)
        known = replace(known, routing=replace(known.routing, normalise=True))
        return cls(**vars(known), limits=read_limits(keys, known.n_layer))


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU experts, [T, D]."""
    product = clamped_swiglu(config.limits[layer.index])
    return shared_and_chosen(g, config, layer, x_TD, product=product)


build = partial(llama.build, attention=exaone_moe.attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with a window shorter than the texts it reads; most gates are held."""
    keys: Metadata = {"attention.sliding_window": 20, PATTERN: [1, 0], "swiglu_clamp_exp": 0.5}
    return [transformer(name, n_expert=5, layer=HEAD_NORMS, metadata=keys)]
