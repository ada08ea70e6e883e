"""GLM-5 (GLM-5 Team 2026, arXiv:2602.15763): DeepSeek-V3.2's graph; in GLM-5.2 not all layers have an index.

The others see what the last one before them chose. Letters as in `_latent`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _ahead, _config, deepseek2, deepseek32, llama
from graphml_models._index import INDEX
from graphml_models._latent import narrow_queries
from graphml_models._routing import shared_and_chosen
from graphml_models.deepseek32 import attend, choose, indexed

LONG = 1 << 20  # the context of GLM-5.2, whose older files do not say which layers have an index


@dataclass(frozen=True)
class Config(deepseek32.Config):
    """And which layers have an index."""

    indexed: tuple[bool, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = deepseek32.Config.read(keys)
        if known.n_ctx >= LONG and not keys.has(f"{INDEX}.types"):
            kinds = tuple(int(i < 2 or i % 4 == 2) for i in range(known.n_layer))
        else:
            kinds = _config.by_layer(keys, f"{INDEX}.types", known.n_layer, 1)
        if not kinds[0]:
            raise keys.unsupported(f"{INDEX}.types", "an index in the first layer")
        return cls(**vars(known), indexed=tuple(map(bool, kinds)))


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node, last: list[Node]) -> Node:
    """Attention before its output projection, [T, N * V]; last: what the last index chose."""
    narrow_TR = narrow_queries(g, config, layer, x_TD)
    if config.indexer_top_k and config.indexed[layer.index]:
        last[:] = [choose(g, config, layer, x_TD, narrow_TR, table, "norm")]
    return attend(g, config, layer, x_TD, narrow_TR, table, last[0] if last else None)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    return llama.build(g, config, weights, partial(attention, last=[]), shared_and_chosen)


ahead = deepseek2.ahead  # which sees all tokens


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: the first layer chooses for both; a third that predicts further."""
    model = indexed(name, 0)
    model = replace(model, metadata={**model.metadata, f"{name}.{INDEX}.types": [1, 0]})
    return [model, _ahead.sample(name, model)]
