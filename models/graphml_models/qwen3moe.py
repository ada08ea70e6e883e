"""Qwen3 with experts (Yang et al. 2025, arXiv:2505.09388): qwen3 whose feed-forwards are experts.

T tokens, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel
from graphml_models import qwen2moe, qwen3
from graphml_models._experts import swiglu_experts
from graphml_models._samples import HEAD_NORMS, transformer


@dataclass(frozen=True)
class Config(qwen2moe.Config):
    """As of Qwen 2 with experts; of a GGUF file the weights of a token's experts sum to 1."""

    in_files: ClassVar = True


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Experts by the softmax of the router, [T, D]."""
    return swiglu_experts(g, layer, x_TD, config.n_expert_used, config.normalise, scaled=True)


build = partial(qwen3.build, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, n_expert=5, layer=HEAD_NORMS)]
