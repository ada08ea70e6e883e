"""Hunyuan-A13B (Tencent 2025): hunyuan-dense with experts, one of them shared by all tokens."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama
from graphml_models._routing import NormalisedConfig, shared_and_chosen
from graphml_models._samples import HEAD_NORMS, shared_expert, transformer
from graphml_models.hunyuan_dense import attention

Config = NormalisedConfig
build = partial(llama.build, attention=attention, feed_forward=shared_and_chosen)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, n_expert=5, layer={**shared_expert(), **HEAD_NORMS}, tied=True)]
