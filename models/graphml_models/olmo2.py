"""OLMo 2 (OLMo Team 2025, arXiv:2501.00656): llama with norms behind the blocks instead of before them.

OLMo 3 has windows too. T tokens, D model width, N heads, H head width.
"""

from __future__ import annotations

from functools import partial
from typing import Self

from graphml.loading.architecture import Keys, SampleModel
from graphml_models import _config, _windows, llama
from graphml_models._attention import norm_rows
from graphml_models._samples import POST_NORMS, row_norms, transformer
from graphml_models._windows import read_local_rope, read_windows, tables_by_layer


class Config(_windows.Config):
    """As of every decoder of which some layers see a window."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        windows = read_windows(keys, known.n_layer, period=4, size=0)
        return cls(**vars(known), windows=windows, local_rope=read_local_rope(keys, known.rope, scaled=False))


attention = partial(_windows.attention, norm=norm_rows)
feed_forward = partial(llama.feed_forward, scaled=False)
build = partial(
    llama.build, attention=attention, feed_forward=feed_forward, tables=tables_by_layer, norms="after"
)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, one with windows shorter than the texts they read."""
    keys = {"attention.sliding_window": 20, "attention.sliding_window_pattern": 2, "rope.scaling.factor": 8.0}
    layer = {**POST_NORMS, **row_norms(2)}
    before = ("attn_norm.weight", "ffn_norm.weight")
    return [transformer(name, "2", layer=layer, without=before),
            transformer(name, "3", layer=layer, without=before, metadata=keys)]  # fmt: skip
