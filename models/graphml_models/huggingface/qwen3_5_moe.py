"""Qwen3.5 with experts, its language model: `Qwen3_5MoeForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface import _delta_net, qwen3_5
from graphml_models.huggingface._names import EXPERTS, expert_keys
from graphml_models.huggingface.qwen2_moe import SHARED


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Qwen3.5, with experts and a shared one in every layer."""
    config.only("norm_topk_prob", True)
    shared = config.size("expert_shared_feed_forward_length")
    return {**_delta_net.keys(config), **expert_keys(config), "expert_shared_feed_forward_length": shared}


FAMILY = Family(
    model_types=("qwen3_5_moe_text",),
    architecture="qwen35moe",
    keys=keys,
    names={**qwen3_5.NAMES, **EXPERTS, **SHARED},
    defaults=_delta_net.DEFAULTS,
)  # fmt: skip
