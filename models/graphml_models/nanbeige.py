"""Nanbeige 4.2 (Nanbeige LLM Lab 2026): llama whose layers are run through several times.

There may be a norm between the rounds. Every round has keys and values of its own. T tokens, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, SampleModel, Tensors
from graphml_models import _config, llama
from graphml_models._samples import transformer


@dataclass(frozen=True)
class Config(_config.Config):
    """How often the layers are run through, and whether there is a norm between the rounds, too."""

    n_rounds: int
    norm_between: bool

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        n_rounds, most = keys.integer("num_loops", 1), _config.MAX_LAYERS // known.n_layer
        if not 1 <= n_rounds <= most:
            raise keys.unsupported("num_loops", f"1 to {most} rounds of {known.n_layer} layers")
        skip = keys.boolean("skip_loop_final_norm", False)
        return cls(**vars(known), n_rounds=n_rounds, norm_between=not skip)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers([*range(config.n_layer)] * config.n_rounds):
        if layer.index and layer.index % config.n_layer == 0 and config.norm_between:
            x_TD = g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "round_norm")
        x_TD = llama.block(g, config, layer, table, x_TD)
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: two layers run through three times, with and without norms between."""
    return [
        transformer(name, "normed", tied=True, metadata={"num_loops": 3}),
        transformer(name, "straight", metadata={"num_loops": 2, "skip_loop_final_norm": True}),
    ]
