"""DeepSeekMoE (Dai et al. 2024, arXiv:2401.06066): llama with small experts, some of them shared."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama
from graphml_models._routing import Config as Config
from graphml_models._routing import shared_and_chosen
from graphml_models._samples import DENSE_FIRST, shared_expert, transformer

build = partial(llama.build, feed_forward=shared_and_chosen)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests, its first layer without experts."""
    return [transformer(name, n_expert=5, layer=shared_expert(), **DENSE_FIRST)]
