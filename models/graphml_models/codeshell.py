"""CodeShell (Xie et al. 2024, arXiv:2403.15747): the same graph as StarCoder 2."""

from __future__ import annotations

from graphml.loading.architecture import SampleModel
from graphml_models._samples import layer_norm_transformer
from graphml_models.starcoder2 import Config as Config
from graphml_models.starcoder2 import build as build


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [layer_norm_transformer(name, n_head_kv=1)]
