"""ERNIE 4.5 with experts (Baidu 2025, "ERNIE 4.5 Technical Report"): llama with shared and chosen experts.

A bias of each expert's own counts for the choice alone.
"""

from functools import partial

from graphml.engine.architecture import SampleModel
from graphml_models import llama
from graphml_models._routing import Config as Config
from graphml_models._routing import shared_and_chosen
from graphml_models._samples import DENSE_FIRST, shared_expert, transformer

build = partial(llama.build, feed_forward=partial(shared_and_chosen, normalise=True))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: with and without a shared expert."""
    bias = {"exp_probs_b.bias": (5,)}
    return [
        transformer(name, n_expert=5, layer={**shared_expert(), **bias}, **DENSE_FIRST),
        transformer(name, "alone", n_expert=5, layer=bias, tied=True),
    ]
