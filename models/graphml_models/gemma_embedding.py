"""EmbeddingGemma (Vera et al. 2025, arXiv:2509.20354): gemma3 whose tokens see both sides of a text.

A window reaches half as far to either side. What follows pooling are the dense layers of the file, if any.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.loading.architecture import Keys
from graphml_models import _config, _windows, gemma, gemma3, llama
from graphml_models._windows import read_local_rope, read_windows, tables_by_layer

CAUSAL, OUTPUT = False, "embeddings"


@dataclass(frozen=True)
class Config(_windows.Config):
    """As of decoders with windows."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        local = read_local_rope(keys, known.rope, base=10000.0, scaled=False)
        return cls(**vars(known), windows=read_windows(keys, known.n_layer, period=6), local_rope=local)


build = partial(
    llama.build,
    attention=gemma3.attention,
    feed_forward=gemma.feed_forward,
    tables=tables_by_layer,
    embed=gemma.embedded,
    norms="both",
    head=llama.hidden_rows,
)

sample = gemma3.sample  # tiny models for tests
