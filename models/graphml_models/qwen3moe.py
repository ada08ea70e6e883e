"""Qwen3 with experts (Yang et al. 2025, arXiv:2505.09388): qwen3 whose feed-forwards are experts."""

from graphml.loading.architecture import SampleModel
from graphml_models._config import Config as Config
from graphml_models._samples import HEAD_NORMS, transformer
from graphml_models.qwen3 import build as build


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, n_expert=5, layer=HEAD_NORMS)]
