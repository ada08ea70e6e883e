"""DeepSeek-V3.2 (2025, arXiv:2512.02556): DeepSeek-V3 whose tokens see those that an index chooses.

Letters as in `_latent`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _ahead, deepseek2, llama
from graphml_models._index import index, read_index, sampled
from graphml_models._latent import folded, latent, narrow_queries, queries
from graphml_models._routing import SIGMOID, Routing, shared_and_chosen


@dataclass(frozen=True)
class Config(deepseek2.Config):
    """And of the index: its heads, and how many tokens each token sees, 0 if all."""

    indexer_n_head: int
    indexer_top_k: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = deepseek2.Config.read(keys)
        known = replace(known, routing=replace(Routing.read(keys, SIGMOID), scaled=True))
        n_head, top_k = read_index(keys, known.n_ctx)
        return cls(**vars(known), indexer_n_head=n_head, indexer_top_k=top_k)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention before its output projection, [T, N * V]."""
    narrow_TR = narrow_queries(g, config, layer, x_TD)
    selected = choose(g, config, layer, x_TD, narrow_TR, table, "neox") if config.indexer_top_k else None
    return attend(g, config, layer, x_TD, narrow_TR, table, selected)


def choose(
    g: Builder, config: Config, layer: Layer, x_TD: Node, narrow_TR: Node, table: Node, mode: str
) -> Node:
    """The tokens that each token sees; mode: of the rope of the first elements of the index's heads."""
    heads, top_k = config.indexer_n_head, config.indexer_top_k
    return index(g, layer, x_TD, narrow_TR, heads, top_k, lambda x: g.rope(x, table, mode))


def attend(
    g: Builder, config: Config, layer: Layer, x_TD: Node, narrow_TR: Node, table: Node, selected: Node | None
) -> Node:
    """Latent attention to the selected tokens, None for all, before its output projection, [T, N * V]."""
    q_TNH = queries(g, config, layer, x_TD, narrow_TR)
    parts = latent(g, config, layer, q_TNH, x_TD).rotated(g, table)
    return folded(g, layer, parts, config.scale, selected=selected)


build = partial(llama.build, attention=attention, feed_forward=shared_and_chosen)
ahead = deepseek2.ahead  # which sees all tokens


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: both layers choose, and the same with a layer that predicts further."""
    model = indexed(name, 0, 1)
    return [model, _ahead.sample(name, model)]


def indexed(name: str, *layers: int) -> SampleModel:
    """A tiny DeepSeek-V3 of which these layers have an index."""
    large = next(model for model in deepseek2.sample(name) if model.name == "v3")
    keys, tensors = sampled(*layers)
    metadata = {**large.metadata, **{f"{name}.{key}": value for key, value in keys.items()}}
    return SampleModel("plain", metadata, {**large.tensors, **tensors})
