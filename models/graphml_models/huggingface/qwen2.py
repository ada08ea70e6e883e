"""Qwen 2 and 2.5: `Qwen2ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import LLAMA, llama_keys, no_window


def keys(config: HfConfig, from_a_layer_on: bool = True) -> dict[str, Value]:
    """As of llama; windows must be off.

    from_a_layer_on: whether layers have windows from number `max_window_layers` on.
    """
    metadata = llama_keys(config)
    whole, listed = config.get(WHOLE), config.get("layer_types")
    without = type(whole) is int and whole >= int(str(metadata["block_count"])) and listed is None
    used = config.flag("use_sliding_window", False) and not (without and from_a_layer_on)
    no_window(config, metadata) if used else config.ignore(*OFF)
    return metadata


WHOLE = "max_window_layers"
OFF = ("sliding_window", WHOLE, "layer_types")  # without meaning while windows are off

FAMILY = Family(
    model_types=("qwen2",),
    architecture="qwen2",
    keys=keys,
    names=LLAMA,
)
