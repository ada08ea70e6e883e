"""Baichuan (Yang et al. 2023, arXiv:2309.10305): llama; 13B penalises distance and has no rope."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, llama
from graphml_models._attention import rotated_heads
from graphml_models._samples import transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """And whether q and k rotate, and ALiBi's bias (Press et al. 2021, arXiv:2108.12409), 0 for none."""

    rotates: bool
    max_bias: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata: as in llama.cpp, 32 layers are those of 7B, 40 those of 13B."""
        known = _config.read(keys)
        max_bias = keys.number("attention.max_alibi_bias", 8.0 if known.n_layer == 40 else 0.0)
        return cls(**vars(known), rotates=known.n_layer == 32, max_bias=max_bias)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Grouped-query attention, [T, N * H]."""
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table if config.rotates else None, x_TD, "norm")
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, max_bias=config.max_bias)


feed_forward = partial(llama.feed_forward, scaled=False)
build = partial(llama.build, attention=attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, "7b", n_layer=32, n_ff=16),
            transformer(name, "13b", metadata={"attention.max_alibi_bias": 8.0})]  # fmt: skip
