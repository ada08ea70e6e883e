"""Qwen2 (Yang et al. 2024, arXiv:2407.10671): llama with a rope of halves; q, k and v have biases."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import _ahead, _windows, llama
from graphml_models._samples import transformer
from graphml_models._windows import FolderConfig as Config

attention, feed_forward = partial(llama.attention, mode="neox"), partial(llama.feed_forward, scaled=False)
plain = partial(llama.build, attention=attention, feed_forward=feed_forward)  # without windows
build = partial(plain, attention=_windows.attention)
ahead = partial(_ahead.build, attention=attention, feed_forward=feed_forward)  # of MiMo (arXiv:2505.07608)


__all__ = ["Config", "ahead", "attention", "build", "feed_forward", "plain", "sample"]


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    model = transformer(name, biases=("attn_q", "attn_k", "attn_v"), tied=True)
    return [model, _ahead.sample(name, model)]
