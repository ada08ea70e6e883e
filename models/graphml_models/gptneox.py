"""GPT-NeoX and Pythia (Black et al. 2022, arXiv:2204.06745; Biderman et al. 2023, arXiv:2304.01373).

Attention and feed-forward side by side, each with a norm of its own, or one after the other; a part of each
head rotates. Letters as in `_layer_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, SampleModel, Tensors
from graphml_models import _config, _layer_norm
from graphml_models._layer_norm import attend_rotated, gelu_ffn, norm
from graphml_models._samples import layer_norm_transformer


@dataclass(frozen=True)
class Config(_layer_norm.Config):
    """As of the family; parallel: attention and feed-forward side by side."""

    parallel: bool

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        parallel = keys.boolean("use_parallel_residual", True)
        known = _config.read(keys, eps=_config.LAYER_EPS)
        return cls(**vars(known), parallel=parallel, gelu_erf=_layer_norm.read_gelu_erf(keys))


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    if not config.parallel:
        return _layer_norm.build(g, config, weights)
    table = config.rope.table(g, weights)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h_TD = norm(layer, x_TD, "attn_norm", config.norm_eps)
        a_TD = attend_rotated(g, config, layer, table, h_TD)
        f_TD = gelu_ffn(layer, norm(layer, x_TD, "ffn_norm", config.norm_eps), config.gelu_erf)
        x_TD = g.add(x_TD, layer.linear(a_TD, "attn_output", "attn_out"), "attn_residual")
        x_TD = g.add(x_TD, f_TD, "ffn_residual")
    return weights.logits(norm(weights, x_TD, "output_norm", config.norm_eps))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [
        layer_norm_transformer(
            name, title, metadata={"rope.dimension_count": 8, "use_parallel_residual": parallel}
        )
        for title, parallel in (("sequential", False), ("parallel", True))
    ]
