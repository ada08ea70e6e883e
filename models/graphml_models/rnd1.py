"""RND1 (Radical Numerics 2025), a diffusion model: qwen3moe whose tokens see those after them.

Its `lm_head` has no bias (modeling_rnd.py), so a file's `output.bias` is left out.
"""

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Tensors
from graphml_models import qwen3moe
from graphml_models.qwen3moe import Config as Config
from graphml_models.qwen3moe import sample as sample

CAUSAL = False
DIFFUSION = 0  # tokens of a block: the whole answer is denoised at once


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    return qwen3moe.build(g, config, weights.without("output.bias"))
