"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786): gemma2 with normed heads in place of caps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Self

from graphml.loading.architecture import Keys, SampleModel
from graphml_models import _config, _windows, gemma2
from graphml_models._attention import norm_heads
from graphml_models._samples import HEAD_NORMS, POST_NORMS, transformer
from graphml_models._windows import read_local_rope, read_windows


class Config(gemma2.Config):
    """As gemma2's, with other defaults."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        known = replace(known, scale=gemma2.scale(keys, known, n_layer=62))
        windows = read_windows(keys, known.n_layer, period=6, size=0)
        local = read_local_rope(keys, known.rope, base=10000.0, scaled=False)
        return cls(**vars(known), windows=windows, local_rope=local, attn_logit_softcapping=0.0,
                   final_logit_softcapping=keys.number("final_logit_softcapping", 0.0))  # fmt: skip


attention = partial(_windows.attention, norm=norm_heads)
build = partial(gemma2.build, attention=attention)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: windows shorter than the texts they read, the third layer without one."""
    keys = {"attention.sliding_window": 20, "attention.sliding_window_pattern": 3, "rope.freq_base": 1e6,
            "rope.scaling.factor": 8.0}  # fmt: skip
    return [transformer(name, tied=True, metadata=keys, layer={**POST_NORMS, **HEAD_NORMS}, n_layer=3)]
