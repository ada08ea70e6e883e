"""dots.llm1 (Huo et al. 2025, arXiv:2506.05767): DeepSeek-V3's experts behind qwen3's attention."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama, qwen3
from graphml_models._routing import Config as Config
from graphml_models._routing import shared_and_chosen
from graphml_models._samples import DENSE_FIRST, HEAD_NORMS, shared_expert, transformer

build = partial(llama.build, attention=qwen3.attention, feed_forward=shared_and_chosen)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: all experts to choose from, and groups of them."""
    layer = {**shared_expert(), **HEAD_NORMS, "exp_probs_b.bias": (6,)}
    keys = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}
    groups = {**keys, "expert_group_count": 3, "expert_group_used_count": 2}
    return [
        transformer(name, title, n_expert=6, layer=layer, metadata=metadata, **DENSE_FIRST)
        for title, metadata in (("plain", keys), ("groups", groups))
    ]
