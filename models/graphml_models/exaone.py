"""EXAONE 3 (LG AI Research 2024, arXiv:2408.03541): llama with a rope of halves."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._samples import transformer

attention, feed_forward = partial(llama.attention, mode="neox"), partial(llama.feed_forward, scaled=False)
build = partial(llama.build, attention=attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name)]
