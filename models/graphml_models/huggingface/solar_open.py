"""Solar Open: `SolarOpenForCausalLM`, GLM-4.5 with experts in all layers."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import HfConfig, Value
from graphml_models.huggingface import glm4_moe
from graphml_models.huggingface._names import llama_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with experts."""
    return {**llama_keys(config), **glm4_moe.routing_keys(config)}


FAMILY = replace(
    glm4_moe.FAMILY,
    model_types=("solar_open",),
    keys=keys,
    defaults={"rope_theta": 1e6},
)  # fmt: skip
