"""Pangu Embedded (Huawei 2025, arXiv:2505.22375): llama with a rope of halves, with biases."""

from functools import partial

from graphml.engine.architecture import SampleModel
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._samples import transformer

build = partial(
    llama.build,
    attention=partial(llama.attention, mode="neox"),
    feed_forward=partial(llama.feed_forward, scaled=False),
)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, biases=True)]
