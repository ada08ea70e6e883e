"""Qwen3 with experts (Yang et al. 2025, arXiv:2505.09388): qwen3 whose feed-forwards are experts.

T tokens, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _windows, qwen3
from graphml_models._experts import swiglu_experts
from graphml_models._samples import HEAD_NORMS, transformer

# Of folders alone: files may say `expert_weights_norm`, which llama.cpp does not read for this architecture.
NORMALISE = "router.normalise"


@dataclass(frozen=True)
class Config(_windows.FolderConfig):
    """As of every decoder; normalise: the weights of a token's experts sum to 1."""

    normalise: bool

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the metadata; of a GGUF file the weights sum to 1, whatever it says."""
        return cls(**vars(_windows.FolderConfig.read(keys)), normalise=keys.boolean(NORMALISE, True))


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Experts by the softmax of the router, [T, D]."""
    return swiglu_experts(g, layer, x_TD, config.n_expert_used, config.normalise, scaled=True)


build = partial(qwen3.build, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, n_expert=5, layer=HEAD_NORMS)]
