"""OLMoE (Muennighoff et al. 2024, arXiv:2409.02060): llama with experts, q and k normed over all heads."""

from functools import partial

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Layer, SampleModel
from graphml_models import llama
from graphml_models._attention import norm_rows
from graphml_models._config import Config as Config
from graphml_models._experts import swiglu_experts
from graphml_models._samples import row_norms, transformer


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Experts by the plain softmax of the router."""
    return swiglu_experts(g, layer, x_TD, config.n_expert_used, normalise=False)


attention = partial(llama.attention, mode="neox", norm=norm_rows)
build = partial(llama.build, attention=attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    return [transformer(name, n_head_kv=4, n_expert=5, layer=row_norms(4))]
