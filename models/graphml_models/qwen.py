"""Qwen (Bai et al. 2023, arXiv:2309.16609): llama with q, k and v in one matrix and a rope of halves."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._samples import FUSED_QKV, SPLIT_QKV, transformer

attention, feed_forward = partial(llama.attention, mode="neox"), partial(llama.feed_forward, scaled=False)
build = partial(llama.build, attention=attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, n_head_kv=4, layer=FUSED_QKV, without=SPLIT_QKV)]
