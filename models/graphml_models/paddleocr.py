"""PaddleOCR-VL (Cui et al. 2025, arXiv:2510.14528), on text alone: ernie4_5 with a rope of halves."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama
from graphml_models._samples import SECTIONS, transformer
from graphml_models.ernie4_5 import feed_forward
from graphml_models.qwen2vl import Config as Config

build = partial(llama.build, attention=partial(llama.attention, mode="neox"), feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, biases=("attn_output",), metadata=SECTIONS)]
