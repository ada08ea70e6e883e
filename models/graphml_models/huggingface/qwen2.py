"""Qwen 2 and 2.5: `Qwen2ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import LLAMA, llama_keys, no_window


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama; windows must be off."""
    metadata = llama_keys(config)
    config.flag("use_sliding_window", False)
    no_window(config, metadata) if config.flag("use_sliding_window", False) else config.ignore(*OFF)
    return metadata


OFF = ("sliding_window", "max_window_layers", "layer_types")  # without meaning while windows are off

FAMILY = Family(
    model_types=("qwen2",),
    architecture="qwen2",
    keys=keys,
    names=LLAMA,
)
