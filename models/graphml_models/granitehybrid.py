"""Granite 4 (IBM 2025, "Granite 4.0"): granite with Mamba 2 in place of attention in most layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _ssm_samples as samples
from graphml_models import granite
from graphml_models._samples import shared_expert
from graphml_models._ssm import Hybrid, mamba2, mixed_out, read_hybrid


@dataclass(frozen=True)
class Config(granite.Config, Hybrid):
    """As granite's, and of state-space layers."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        return cls(
            **vars(read_hybrid(keys)),
            scales=granite.Scales.read(keys, logit=1.0),
            positions=keys.boolean("rope.scaling.finetuned", True),
        )


def mixer(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention or Mamba 2 before the output projection."""
    attention = config.of(layer)
    if attention is None:
        return mamba2(g, config.ssm, layer, x_TD, config.norm_eps)
    return granite.attention(g, attention, layer, table, x_TD)


build = partial(granite.build, mixer=mixer, project=mixed_out)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: dense, and experts without positions."""
    keys = {"logit_scale": 4.0, "residual_scale": 0.5, "embedding_scale": 3.0, **samples.sizes(n_group=2)}
    more = {**keys, "rope.scaling.finetuned": False}
    experts = samples.mixed(name, "experts", samples.mamba2(), more, shared_expert(), n_expert=5)
    return [samples.mixed(name, "plain", samples.mamba2(), keys), experts]
