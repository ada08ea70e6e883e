"""Jamba (Lieber et al. 2024, arXiv:2403.19887): Mamba in most layers, attention without positions in some.

The feed-forward of every layer is dense or of experts. T tokens, D model width, I inner width.
"""

from __future__ import annotations

from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _ssm_samples as samples
from graphml_models import llama
from graphml_models._attention import project
from graphml_models._experts import swiglu_experts
from graphml_models._ffn import gated_ffn
from graphml_models._ssm import Hybrid, mixed_out, read_hybrid
from graphml_models.mamba import mamba


class Config(Hybrid):
    """As of every hybrid, without groups."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        return cls(**vars(read_hybrid(keys, groups=False)))


def mixer(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention or Mamba before the output projection."""
    attention = config.of(layer)
    if attention is None:
        return mamba(g, config.ssm, layer, x_TD, config.norm_eps, norms=True, weighted=True)
    return g.attend(*project(g, attention, layer, x_TD), layer.index, config.head_dim**-0.5)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """SwiGLU, in layers with a router with experts, whose weights need not sum to 1."""
    if layer.get("ffn_gate_inp") is None:
        return gated_ffn(g, layer, x_TD)
    return swiglu_experts(g, layer, x_TD, config.n_expert_used, normalise=False)


build = partial(llama.build, attention=mixer, feed_forward=feed_forward, project=mixed_out)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: dense, and with experts."""
    layer, keys = samples.mamba(norms=True), samples.sizes()
    return [samples.mixed(name, "plain", layer, keys),
            samples.mixed(name, "experts", layer, keys, n_expert=5)]  # fmt: skip
