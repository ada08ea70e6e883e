"""Gemma 4 of one embedding for all that it reads, its language model: `Gemma4UnifiedForCausalLM`."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import HfConfig, Value
from graphml_models.huggingface import gemma4


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Gemma 4, whose experts and layers' own inputs the class does not have."""
    metadata = gemma4.keys(config) | {"embedding_length_per_layer_input": 0}
    return {key: value for key, value in metadata.items() if key not in ("expert_count", "expert_used_count")}


FAMILY = replace(gemma4.FAMILY, model_types=("gemma4_unified_text",), keys=keys)
