"""Ministral 3: `Ministral3ForCausalLM`, whose far queries are scaled up."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import required_rope, rope_keys
from graphml_models.huggingface._names import LLAMA, PAIRED, no_window

SCALING, LENGTH = "llama_4_scaling_beta", "original_max_position_embeddings"


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with yarn whose magnitude is in the heads, and a factor of queries that grows."""
    config.activation("silu")
    metadata = decoder_keys(config)
    no_window(config, metadata)
    beta = required_rope(config).get(SCALING)
    metadata |= rope_keys(config, metadata, known=(SCALING, "max_position_embeddings"))
    if beta is None:
        return metadata
    if metadata.get("rope.scaling.type") != "yarn":
        raise config.error(f"rope_parameters: wanted yarn with {LENGTH} beside {SCALING}")
    return {**metadata, "attention.temperature_scale": config.checked_number(SCALING, beta)}


FAMILY = Family(
    model_types=("ministral3",),
    architecture="mistral3",
    keys=keys,
    names={**LLAMA, **PAIRED},
)
