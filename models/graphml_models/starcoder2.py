"""StarCoder 2 (Lozhkov et al. 2024, arXiv:2402.19173): GPT-2's layers with rotated queries and keys.

The window that the paper's models have is applied to folders of transformers, whose metadata say which layers
have it; GGUF files do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, SampleModel, Tensors
from graphml_models import _layer_norm
from graphml_models._layer_norm import attend_rotated, decoder
from graphml_models._samples import layer_norm_transformer
from graphml_models._windows import PATTERN, WindowConfig, read_windows


@dataclass(frozen=True)
class Config(_layer_norm.Config, WindowConfig):
    """As of the family, with windows."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _layer_norm.Config.read(keys)
        windows = read_windows(keys, known.n_layer, period=0) if keys.has(PATTERN) else (0,) * known.n_layer
        return cls(**vars(known), windows=windows)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    return decoder(
        weights,
        config,
        x_TD,
        lambda layer, h_TD: attend_rotated(g, config, layer, table, h_TD, window=config.windows[layer.index]),
    )


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, one with a window shorter than the texts that it reads."""
    keys = {"attention.sliding_window": 40, PATTERN: 0}
    return [
        layer_norm_transformer(name, n_head_kv=2, fused=False, tied=True),
        layer_norm_transformer(name, "window", n_head_kv=2, fused=False, tied=True, metadata=keys),
    ]
