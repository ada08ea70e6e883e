"""StarCoder (Li et al. 2023, arXiv:2305.06161): GPT-2 with one key-value head."""

from __future__ import annotations

from graphml.loading.architecture import SampleModel
from graphml_models._layer_norm import Config as Config
from graphml_models._samples import layer_norm_transformer
from graphml_models.gpt2 import build as build


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [layer_norm_transformer(name, "plain", n_head_kv=1, top={"position_embd.weight": (128, 64)})]
