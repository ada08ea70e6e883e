"""Qwen3-VL with experts (Bai et al. 2025, arXiv:2511.21631), its language model on text alone: qwen3moe."""

from graphml.loading.architecture import SampleModel
from graphml_models._samples import HEAD_NORMS, SECTIONS, transformer
from graphml_models.qwen2vl import Config as Config
from graphml_models.qwen3vl import build as build


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, n_expert=5, layer=HEAD_NORMS, metadata=SECTIONS)]
