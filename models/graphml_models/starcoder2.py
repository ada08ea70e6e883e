"""StarCoder 2 (Lozhkov et al. 2024, arXiv:2402.19173): GPT-2's layers with rotated queries and keys."""

from __future__ import annotations

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models._layer_norm import Config, attend_rotated, decoder
from graphml_models._samples import layer_norm_transformer


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    return decoder(weights, config, x_TD, lambda layer, h_TD: attend_rotated(g, config, layer, table, h_TD))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [layer_norm_transformer(name, n_head_kv=2, fused=False, tied=True)]
