"""Llama: `LlamaForCausalLM`, and classes that compute the same."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import LLAMA, PAIRED, llama_keys, no_window


def keys(config: HfConfig) -> dict[str, Value]:
    """As of every decoder; GGUF pairs neighbours in heads, transformers halves."""
    metadata = llama_keys(config)
    no_window(config, metadata)
    return metadata


FAMILY = Family(
    model_types=("llama",),
    architecture="llama",
    keys=keys,
    names={**LLAMA, **PAIRED},
)
