"""Qwen3 (Yang et al. 2025, arXiv:2505.09388): llama with a norm on each head of q and k, rope of halves."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import _windows, llama
from graphml_models._attention import norm_heads
from graphml_models._samples import HEAD_NORMS, transformer
from graphml_models._windows import FolderConfig as Config

attention = partial(llama.attention, mode="neox", norm=norm_heads)
build = partial(llama.build, attention=partial(_windows.attention, norm=norm_heads))


__all__ = ["Config", "attention", "build", "sample"]


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, n_head_kv=1, layer=HEAD_NORMS, tied=True)]
