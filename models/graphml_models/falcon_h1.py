"""Falcon-H1 (Zuo et al. 2025, arXiv:2507.22448): attention and Mamba 2 side by side in every layer.

T tokens, O output rows, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, SampleModel, Tensors
from graphml_models import _config, llama
from graphml_models import _ssm_samples as samples
from graphml_models._ffn import gated_ffn
from graphml_models._samples import transformer
from graphml_models._ssm import Ssm, mamba2


@dataclass(frozen=True)
class Config(_config.Config):
    """As of every decoder, and of state-space layers."""

    ssm: Ssm

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        return cls(**vars(known), ssm=Ssm.read(keys))


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]; as llama.cpp does, without frequency factors and without attention's bias."""
    table, eps = config.rope.table(g), config.norm_eps
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.without("*.attn_output.bias").layers(config.n_layer):
        h_TD = g.rms_norm(x_TD, layer["attn_norm"], eps, "attn_norm")
        a_TD = llama.attention(g, config, layer, table, h_TD, "neox")
        s_TI = mamba2(g, config.ssm, layer, h_TD, eps, normed=False)
        h_TD = g.add(llama.attn_out(layer, a_TD), layer.linear(s_TI, "ssm_out", "ssm_out"), "mixed")
        x_TD = g.add(x_TD, h_TD, "mixed_residual")
        h_TD = gated_ffn(g, layer, g.rms_norm(x_TD, layer["ffn_norm"], eps, "ffn_norm"))
        x_TD = g.add(x_TD, h_TD, "ffn_residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], eps, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, metadata=samples.sizes(n_group=2), layer=samples.mamba2())]
