"""Ling (Ling Team 2025, arXiv:2503.05139): the same graph as DeepSeekMoE."""

from graphml.loading.architecture import SampleModel
from graphml_models._routing import Config as Config
from graphml_models._samples import shared_expert, transformer
from graphml_models.deepseek import build as build


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    keys = {"expert_weights_norm": True, "expert_weights_scale": 1.5}
    return [transformer(name, n_expert=5, layer=shared_expert(), metadata=keys)]
