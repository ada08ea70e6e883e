"""Orion (OrionStar 2024, arXiv:2401.12246): llama with layer norms and a rope of halves."""

from __future__ import annotations

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import _layer_norm, llama
from graphml_models._layer_norm import Config as Config
from graphml_models._samples import layer_norm_transformer

build = partial(_layer_norm.build, feed_forward=partial(llama.feed_forward, scaled=False))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [layer_norm_transformer(name, n_head_kv=2, fused=False, gated=True, biases=False)]
