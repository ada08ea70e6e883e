"""Qwen2-VL and Qwen2.5-VL (Wang et al. 2024, arXiv:2409.12191), for text: the same graph as qwen2."""

from __future__ import annotations

from typing import Self

from graphml.engine.architecture import Keys, SampleModel
from graphml_models import _config
from graphml_models._rope import read_sections
from graphml_models._samples import transformer
from graphml_models.qwen2 import build as build


class Config(_config.Config):
    """As of every decoder; the sections of its rope are for pictures."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        read_sections(keys)
        return cls(**_config.shared(keys))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, biases=("attn_q", "attn_k", "attn_v"))]
