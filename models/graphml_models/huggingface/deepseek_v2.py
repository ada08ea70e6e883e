"""DeepSeek-V2 Lite and kin: `DeepseekV2ForCausalLM`, whose experts are chosen without groups."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import HfConfig, Value
from graphml_models.huggingface import deepseek_v3
from graphml_models.huggingface.glm4_moe import routing_keys

SOFTMAX = 1  # GGUF's number


def keys(config: HfConfig) -> dict[str, Value]:
    """As of DeepSeek-V3, with a softmax over all experts, whose weights are not normalised."""
    config.only("topk_method", "greedy")
    config.only("scoring_func", "softmax")
    config.only("norm_topk_prob", False)
    config.only("rms_norm_eps", 1e-6)  # norms of the latents always have it
    config.ignore("n_group", "topk_group")  # of the other method
    config.follows("head_dim", config.size("qk_rope_head_dim"))  # whatever is stated
    routing = routing_keys(config, SOFTMAX) | {"expert_group_count": 0, "expert_group_used_count": 0}
    return {**deepseek_v3.latent_keys(config), **routing}


FAMILY = replace(
    deepseek_v3.FAMILY,
    model_types=("deepseek_v2",),
    keys=keys,
    defaults={"norm_topk_prob": False},
)  # fmt: skip
