"""dots.llm1: `Dots1ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import ATTENTION, EXPERTS, GATED, HEAD_NORMS, NORMS, TOP, llama_keys
from graphml_models.huggingface.glm4_moe import SHARED, routing_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with DeepSeek-V3's experts; windows must be off."""
    config.only("scoring_func", "sigmoid", "noaux_tc")
    metadata = llama_keys(config)
    kinds = config.layered("layer_types", {"full_attention": False}, int(str(metadata["block_count"])))
    if kinds is None and config.get("sliding_window") is not None:
        config.only("max_window_layers", metadata["block_count"])
    config.ignore("sliding_window", "max_window_layers")
    return {**metadata, **routing_keys(config)}


FAMILY = Family(
    model_types=("dots1",),
    architecture="dots1",
    keys=keys,
    names={**TOP, **ATTENTION, **NORMS, **GATED, **HEAD_NORMS, **EXPERTS, **SHARED},
)
