"""Maincoder (Maincode 2025, "Maincoder-1B"): llama with norms on each head of q and k behind the rope."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import hunyuan_dense, llama
from graphml_models._config import Config as Config
from graphml_models._samples import HEAD_NORMS, transformer

build = partial(
    llama.build,
    attention=partial(hunyuan_dense.attention, mode="norm"),
    feed_forward=partial(llama.feed_forward, scaled=False),
)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, layer=HEAD_NORMS)]
