"""OLMoE: `OlmoeForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import ATTENTION, EXPERTS, HEAD_NORMS, NORMS, TOP, llama_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with experts whose weights are not normalised."""
    config.only("norm_topk_prob", False)
    config.only("clip_qkv")
    metadata = llama_keys(config)
    return {
        **metadata,
        "expert_count": config.size("expert_count"),
        "expert_used_count": config.size("expert_used_count"),
    }


FAMILY = Family(
    model_types=("olmoe",),
    architecture="olmoe",
    keys=keys,
    names={**TOP, **ATTENTION, **NORMS, **HEAD_NORMS, **EXPERTS},
)  # fmt: skip
