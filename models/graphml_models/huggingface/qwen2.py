"""Qwen 2 and 2.5: `Qwen2ForCausalLM`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models._windows import BY_LAYER
from graphml_models.huggingface._names import LLAMA, llama_keys
from graphml_models.huggingface.llama import is_minicpm_v

Windowed = Callable[[HfConfig, int], list[bool]]


def from_a_layer_on(config: HfConfig, n_layer: int) -> list[bool]:
    """Which layers have windows: those from number `max_window_layers` on."""
    first = config.size(WHOLE)
    return [i >= first for i in range(n_layer)]


def keys(config: HfConfig, windowed: Windowed = from_a_layer_on, by_list: bool = False) -> dict[str, Value]:
    """As of llama, with windows; windowed: which layers have them where `layer_types` does not say it.

    by_list: whether `layer_types` counts though `use_sliding_window` is false.
    """
    metadata = llama_keys(config)
    config.ignore(*OFF)
    used = config.flag("use_sliding_window", False) or (by_list and config.get("layer_types") is not None)
    size = config.window() if used else 0
    if not size:
        return metadata
    n_layer = int(str(metadata["block_count"]))
    listed = config.layered("layer_types", {"full_attention": False, "sliding_attention": True}, n_layer)
    listed = windowed(config, n_layer) if listed is None else listed
    return {**metadata, BY_LAYER: [size * has_window for has_window in listed]} if any(listed) else metadata


WHOLE = "max_window_layers"
OFF = ("sliding_window", WHOLE, "layer_types")  # without meaning while windows are off


def claims(config: Mapping[str, Any]) -> str | None:
    """MiniCPM-V and MiniCPM-o 2.6."""
    return "qwen2" if is_minicpm_v(config, "2.6") else None


FAMILY = Family(
    model_types=("qwen2",),
    architecture="qwen2",
    keys=keys,
    names=LLAMA,
    older={"dots_ocr": "qwen2", "llava_qwen": "qwen2"},
    claims=claims,
)
