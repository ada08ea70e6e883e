"""DeepSeek-V2 Lite and kin: `DeepseekV2ForCausalLM`, and V2 whole, whose experts are chosen by groups."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import HfConfig, Value
from graphml_models._routing import BY_BEST
from graphml_models.huggingface import deepseek_v3
from graphml_models.huggingface.glm4_moe import routing_keys

SOFTMAX = 1  # GGUF's number


def keys(config: HfConfig) -> dict[str, Value]:
    """As of DeepSeek-V3, with a softmax over all experts, whose weights are not normalised."""
    config.only("topk_method", "greedy", "group_limited_greedy")
    config.only("scoring_func", "softmax")
    config.only("norm_topk_prob", False)
    config.only("rms_norm_eps", 1e-6)  # norms of the latents always have it
    config.ignore("n_group", "topk_group")  # of one of the methods
    config.follows("head_dim", config.size("qk_rope_head_dim"))  # whatever is stated
    grouped = config.get("topk_method") == "group_limited_greedy"
    routing = routing_keys(config, SOFTMAX, grouped)
    return {**deepseek_v3.latent_keys(config), **routing, BY_BEST: grouped}


FAMILY = replace(
    deepseek_v3.FAMILY,
    model_types=("deepseek_v2",),
    keys=keys,
    defaults={"norm_topk_prob": False},
)  # fmt: skip
