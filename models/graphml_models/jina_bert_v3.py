"""Jina Embeddings 3 (Sturua et al. 2024, arXiv:2409.10173), without adapters: BERT with a rope of halves."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import nomic_bert
from graphml_models._encoder import Config as Config
from graphml_models._samples import bert_like
from graphml_models.bert import gelu_ffn

CAUSAL, OUTPUT = False, "embeddings"

build = partial(nomic_bert.build, ffn=gelu_ffn)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [bert_like(name, fused=True)]
