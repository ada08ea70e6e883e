"""Phi-1.5 and Phi-2 (Li et al. 2023, arXiv:2309.05463): attention beside feed-forward, both behind one norm.

A part of each head rotates. Letters as in `_layer_norm`.
"""

from __future__ import annotations

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import _layer_norm
from graphml_models._layer_norm import Config as Config
from graphml_models._samples import layer_norm_transformer

build = partial(_layer_norm.build, norms="shared")


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    bias = {"output.bias": (80,)}
    keys = {"rope.dimension_count": 8}
    return [
        layer_norm_transformer(
            name, fused=False, top=bias, without=("ffn_norm.weight", "ffn_norm.bias"), metadata=keys
        )
    ]
