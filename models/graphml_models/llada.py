"""LLaDA (Nie et al. 2025, arXiv:2502.09992), a diffusion model: llama whose tokens see those after them.

In modeling_llada.py every linear layer, that of the logits too, has a bias where the configuration says
`include_bias` (not of LLaDA-8B), so the biases of a file are added; llama.cpp leaves them out. The rope has
no factors of its own, so `rope_freqs.weight` is left out, as in llama.cpp.
"""

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._samples import transformer

CAUSAL = False
DIFFUSION = 32  # tokens of a block of an answer


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    return llama.build(g, config, weights.without("rope_freqs.weight"))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    return [transformer(name)]
