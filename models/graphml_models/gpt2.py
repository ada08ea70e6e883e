"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"): learned positions."""

from __future__ import annotations

from functools import partial

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import _layer_norm
from graphml_models._layer_norm import Config, attend, no_tables
from graphml_models._samples import layer_norm_transformer


def embedded(g: Builder, config: Config, weights: Tensors) -> Node:
    """The rows of the tokens and of their positions, [T, D]."""
    return g.add(g.embed(weights["token_embd"], g.tokens), positions(g, config, weights), "embedded")


build = partial(_layer_norm.build, attention=attend, tables=no_tables, embed=embedded)


def positions(g: Builder, config: Config, weights: Tensors) -> Node:
    """A learned vector for each position, [T, D]."""
    table = weights["position_embd"]
    if table.shape[0] != config.n_ctx:
        raise ArchitectureError(
            f"position_embd.weight: wanted {config.n_ctx} rows, as context_length says; got {table.shape[0]}"
        )
    return g.rows(table, g.positions, "position_embedding")


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    learned = {"position_embd.weight": (128, 64)}
    return [
        layer_norm_transformer(name, "plain", top=learned),
        layer_norm_transformer(name, "tied", n_head_kv=1, tied=True, top=learned),
    ]
