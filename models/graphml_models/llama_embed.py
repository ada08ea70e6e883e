"""Llama-Embed-Nemotron (Babakhin et al. 2025, arXiv:2511.07025): llama whose tokens see all of a text.

llama.cpp masks later tokens where a file does not say `attention.causal`, which its converter leaves out; the
model's own code never does.
"""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._samples import transformer

CAUSAL, OUTPUT = False, "embeddings"

build = partial(llama.build, head=llama.hidden_rows)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [
        transformer(name, tied=True, rope_factors=True),
        transformer(name, "experts", n_expert=5, biases=True, scales=True, tied=True),
    ]
