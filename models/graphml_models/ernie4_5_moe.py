"""ERNIE 4.5 with experts (Baidu 2025, "ERNIE 4.5 Technical Report"): llama with shared and chosen experts.

A bias of each expert's own counts for the choice alone.
"""

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import llama
from graphml_models._routing import NormalisedConfig, shared_and_chosen
from graphml_models._samples import DENSE_FIRST, shared_expert, transformer

Config = NormalisedConfig


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]; the bias of what attention gives is left out, as in llama.cpp."""
    kept = weights.without("*.attn_output.bias")
    return llama.build(g, config, kept, feed_forward=shared_and_chosen)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: with and without a shared expert."""
    bias = {"exp_probs_b.bias": (5,)}
    return [
        transformer(name, n_expert=5, layer={**shared_expert(), **bias}, **DENSE_FIRST),
        transformer(name, "alone", n_expert=5, layer=bias, tied=True),
    ]
