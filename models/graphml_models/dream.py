"""Dream (Ye et al. 2025, arXiv:2508.15487), a diffusion model: qwen2 whose tokens see those after them.

Its `lm_head` has no bias (modeling_dream.py), so a file's `output.bias` is left out, as in llama.cpp.
"""

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import SampleModel, Tensors
from graphml_models import qwen2
from graphml_models._config import Config as Config

CAUSAL = False
DIFFUSION = 0  # tokens of a block: the whole answer is denoised at once


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    return qwen2.plain(g, config, weights.without("output.bias"))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests; no layer predicts further, where tokens see those after them."""
    return qwen2.sample(name)[:1]
