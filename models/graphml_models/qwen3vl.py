"""Qwen3-VL (Bai et al. 2025, arXiv:2511.21631), its language model on text alone: qwen3."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama, qwen3
from graphml_models._samples import HEAD_NORMS, SECTIONS, transformer
from graphml_models.qwen2vl import Config as Config

feed_forward = partial(llama.feed_forward, scaled=False)
build = partial(llama.build, attention=qwen3.attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, layer=HEAD_NORMS, tied=True, metadata=SECTIONS)]
