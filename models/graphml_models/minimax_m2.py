"""MiniMax-M2 (MiniMax 2025): experts chosen by sigmoid; queries and keys normed over all heads at once."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama
from graphml_models._attention import norm_rows
from graphml_models._routing import NormalisedConfig, shared_and_chosen
from graphml_models._samples import transformer

Config = NormalisedConfig


attention = partial(llama.attention, mode="neox", norm=norm_rows)
build = partial(llama.build, attention=attention, feed_forward=shared_and_chosen)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    layer = {"attn_q_norm.weight": (64,), "attn_k_norm.weight": (32,), "exp_probs_b.bias": (5,)}
    keys = {"expert_gating_func": 2, "rope.dimension_count": 8}
    return [transformer(name, n_expert=5, layer=layer, metadata=keys)]
