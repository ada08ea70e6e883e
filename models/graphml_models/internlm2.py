"""InternLM2 (Cai et al. 2024, arXiv:2403.17297): llama, its projections split as llama's are."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._samples import transformer

attention, feed_forward = partial(llama.attention, mode="norm"), partial(llama.feed_forward, scaled=False)
build = partial(llama.build, attention=attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name)]
