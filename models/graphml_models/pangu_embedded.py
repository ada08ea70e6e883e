"""Pangu Embedded (Huawei 2025, arXiv:2505.22375): llama with a rope of halves, with biases."""

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._samples import transformer

attention, feed_forward = partial(llama.attention, mode="neox"), partial(llama.feed_forward, scaled=False)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]; factors of the rope are left out, as in llama.cpp."""
    return llama.build(g, config, weights.without("rope_freqs.weight"), attention, feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name, biases=True)]
