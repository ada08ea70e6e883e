"""EuroBERT (Boizard et al. 2025, arXiv:2503.05500): llama with a rope of halves, tokens see all of a text."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import gemma, llama
from graphml_models._config import Config as Config
from graphml_models._samples import transformer

CAUSAL, OUTPUT = False, "embeddings"

feed_forward = partial(llama.feed_forward, scaled=False)
build = partial(llama.build, attention=gemma.attention, feed_forward=feed_forward, head=llama.hidden_rows)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, tied=True)]
