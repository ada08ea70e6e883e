"""LLaDA (Nie et al. 2025, arXiv:2502.09992), a diffusion model: llama whose tokens see those after them."""

from graphml.engine.architecture import SampleModel
from graphml_models._config import Config as Config
from graphml_models._samples import transformer
from graphml_models.llama import build as build

CAUSAL = False


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name)]
