"""Ministral 8B: `MinistralForCausalLM`, llama with windows in some layers."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, window_keys
from graphml.loading.huggingface.family import Family
from graphml_models._windows import BY_LAYER
from graphml_models.huggingface._names import LLAMA, llama_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama; windows by `layer_types`, in all layers where a config has a window alone."""
    metadata = llama_keys(config)
    size = config.window()
    count = int(str(metadata["block_count"]))
    if config.get("layer_types") is None:
        config.follows("layer_types", ["sliding_attention" if size else "full_attention"] * count)
    windows = window_keys(config, metadata)
    if not windows:
        return metadata
    listed = config.layered("layer_types", {"full_attention": False, "sliding_attention": True}, count) or []
    return {**metadata, BY_LAYER: [size * has_window for has_window in listed]}


FAMILY = Family(
    model_types=("ministral",),
    architecture="qwen2",
    keys=keys,
    names=LLAMA,
)
