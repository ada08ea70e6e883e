"""Granite 3, dense: `GraniteForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import LLAMA, PAIRED, llama_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with factors of embeddings, residuals and scores; logits are divided by theirs."""
    return {
        **llama_keys(config),
        "embedding_scale": config.number("embedding_scale", 1.0),
        "residual_scale": config.number("residual_scale", 1.0),
        "attention.scale": config.number("attention.scale", 1.0),
        "logit_scale": config.number("logits_scaling", 1.0),
    }


FAMILY = Family(
    model_types=("granite",),
    architecture="granite",
    keys=keys,
    names={**LLAMA, **PAIRED},
)
