"""Jais 2 (Inception, MBZUAI and Cerebras 2025): the same graph as Nemotron-4."""

from __future__ import annotations

from graphml.loading.architecture import SampleModel
from graphml_models._layer_norm import Config as Config
from graphml_models._samples import layer_norm_transformer
from graphml_models.nemotron import build as build


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [layer_norm_transformer(name, n_head_kv=2, fused=False)]
