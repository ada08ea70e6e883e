"""Mellum 2 (JetBrains 2026): qwen3moe, three of four layers with a window and a rope that is not scaled.

T tokens, N heads, H head width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Self

from graphml.loading.architecture import Keys, SampleModel
from graphml_models import _config, _windows, llama
from graphml_models._attention import norm_heads
from graphml_models._samples import HEAD_NORMS, Metadata, transformer
from graphml_models._windows import PATTERN, read_windows, tables_by_layer


class Config(_windows.Config):
    """As of every decoder of which some layers see a window."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        windows = read_windows(keys, known.n_layer, period=4, size=0)
        local_rope = replace(known.rope, scaled=False, long=None)
        return cls(**vars(known), windows=windows, local_rope=local_rope)


build = partial(llama.build, attention=partial(_windows.attention, norm=norm_heads), tables=tables_by_layer)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with a window shorter than the texts it reads."""
    keys: Metadata = {
        "attention.sliding_window": 20,
        PATTERN: 2,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
    }
    return [transformer(name, n_expert=5, layer=HEAD_NORMS, metadata=keys)]
