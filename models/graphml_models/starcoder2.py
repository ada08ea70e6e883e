"""StarCoder 2 (Lozhkov et al. 2024, arXiv:2402.19173): GPT-2's layers with rotated queries and keys.

The window that the paper's models have is applied to folders of transformers, whose metadata say which layers
have it; GGUF files do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.loading.architecture import Keys, SampleModel
from graphml_models import _layer_norm, _windows
from graphml_models._samples import layer_norm_transformer
from graphml_models._windows import PATTERN, WindowConfig, read_windows


@dataclass(frozen=True)
class Config(_layer_norm.Config, WindowConfig):
    """As of the family, with windows."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _layer_norm.Config.read(keys)
        windows = read_windows(keys, known.n_layer, period=0) if keys.has(PATTERN) else (0,) * known.n_layer
        return cls(**vars(known), windows=windows)


build = partial(_layer_norm.build, attention=_windows.attention)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, one with a window shorter than the texts that it reads."""
    keys = {"attention.sliding_window": 40, PATTERN: 0}
    return [
        layer_norm_transformer(name, n_head_kv=2, fused=False, tied=True),
        layer_norm_transformer(name, "window", n_head_kv=2, fused=False, tied=True, metadata=keys),
    ]
