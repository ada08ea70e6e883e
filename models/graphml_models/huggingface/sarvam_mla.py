"""Sarvam 105B: `DeepseekV3ForCausalLM` by `SarvamMLAConfig`."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import HfConfig, Value
from graphml_models.huggingface import deepseek_v3

OLDER = "deepseek_yarn"


def keys(config: HfConfig) -> dict[str, Value]:
    """As of DeepSeek-V3; `head_dim` says nothing, and YaRN has a name of its own in older files."""
    config.follows("head_dim", config.size("qk_rope_head_dim"))
    rope = config.get("rope_scaling")
    if isinstance(rope, dict) and OLDER in (rope.get("type"), rope.get("rope_type")):
        config.follows("rope_scaling", {**rope, "type": "yarn", "rope_type": "yarn"})
    return deepseek_v3.keys(config)


FAMILY = replace(deepseek_v3.FAMILY, model_types=("sarvam_mla",), keys=keys, ignored=("q_head_dim",))
