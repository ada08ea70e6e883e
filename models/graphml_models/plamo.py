"""PLaMo (Preferred Networks 2023, "PLaMo-13B"): attention and SwiGLU start from the same norm.

T tokens, D model width.
"""

from __future__ import annotations

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._samples import transformer

attention = partial(llama.attention, mode="neox")
feed_forward = partial(llama.feed_forward, scaled=False)
build = partial(llama.build, attention=attention, feed_forward=feed_forward, norms="shared")


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, n_head_kv=1, without=("ffn_norm.weight",))]
