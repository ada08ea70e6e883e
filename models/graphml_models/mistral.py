"""Mistral 7B (Jiang et al. 2023, arXiv:2310.06825): llama with a rope of halves, its layers seeing a window.

The architecture of folders of transformers, whose matrices it takes as they are. GGUF files of Mistral say
`llama`: they have other rows of q and k, and no window.
"""

from __future__ import annotations

from functools import partial
from typing import Self

from graphml.loading.architecture import Keys, SampleModel
from graphml_models import _config, _windows, llama
from graphml_models._samples import transformer
from graphml_models._windows import WindowConfig, read_windows


class Config(WindowConfig):
    """As of every decoder of which some layers see a window."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        return cls(**vars(known), windows=read_windows(keys, known.n_layer, period=0, size=0))


build = partial(llama.build, attention=_windows.attention)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: a window shorter than the texts they read, and none."""
    return [
        transformer(name, "window", metadata={"attention.sliding_window": 40}),
        transformer(name, "whole"),
    ]
