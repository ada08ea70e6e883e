"""PaddleOCR-VL (Cui et al. 2025, arXiv:2510.14528), for text: the same graph as qwen2, dense."""

from functools import partial

from graphml.engine.architecture import SampleModel
from graphml_models import llama, qwen2
from graphml_models._samples import transformer
from graphml_models.ernie4_5 import feed_forward
from graphml_models.qwen2vl import Config as Config

build = partial(llama.build, attention=qwen2.attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, n_head_kv=1)]
