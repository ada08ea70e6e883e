"""Mistral: `MistralForCausalLM`, llama whose layers may all have a window."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import LLAMA, llama_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, and the window of all layers."""
    return {**llama_keys(config), "attention.sliding_window": config.window()}


FAMILY = Family(
    model_types=("mistral",),
    architecture="mistral",
    keys=keys,
    names=LLAMA,
    older={"llava_mistral": "mistral"},
)
