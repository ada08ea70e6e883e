"""BLOOM (Le Scao et al. 2022, arXiv:2211.05100): a norm of the embedding, and ALiBi instead of positions."""

from __future__ import annotations

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import _layer_norm
from graphml_models._layer_norm import Config, attend, no_tables, norm
from graphml_models._samples import layer_norm_transformer

MAX_BIAS = 8.0  # the slope of the first head is 2 ** (-8 / heads); files do not say it


def embedded(g: Builder, config: Config, weights: Tensors) -> Node:
    """The rows of the tokens, normed, [T, D]."""
    return norm(weights, g.embed(weights["token_embd"], g.tokens), "token_embd_norm", config.norm_eps)


attention = partial(attend, max_bias=MAX_BIAS)
build = partial(_layer_norm.build, attention=attention, tables=no_tables, embed=embedded)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    norms = {"token_embd_norm.weight": (64,), "token_embd_norm.bias": (64,)}
    return [layer_norm_transformer(name, tied=True, top=norms)]
