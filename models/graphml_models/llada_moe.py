"""LLaDA-MoE (Zhu et al. 2025, arXiv:2509.24389), a diffusion model: OLMoE's experts, a norm on each head."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._samples import HEAD_NORMS, transformer
from graphml_models.olmoe import feed_forward
from graphml_models.qwen3 import attention

CAUSAL = False
DIFFUSION = 32  # tokens of a block of an answer

build = partial(llama.build, attention=attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, n_head_kv=4, n_expert=5, layer=HEAD_NORMS)]
