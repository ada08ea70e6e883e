"""Llama: `LlamaForCausalLM`, and classes that compute the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import LLAMA, PAIRED, llama_keys, no_window


def keys(config: HfConfig) -> dict[str, Value]:
    """As of every decoder; GGUF pairs neighbours in heads, transformers halves."""
    metadata = llama_keys(config)
    no_window(config, metadata)
    return metadata


def claims(config: Mapping[str, Any]) -> str | None:
    """MiniCPM-V 2.5 and 4, whose config is that of their language model, with a version."""
    return "llama" if is_minicpm_v(config, "2.5", "4.0") else None


def is_minicpm_v(config: Mapping[str, Any], *versions: str) -> bool:
    """Whether it is a config of MiniCPM-V or o of one of these versions."""
    return config.get("model_type") in ("minicpmv", "minicpmo") and str(config.get("version")) in versions


FAMILY = Family(
    model_types=("llama",),
    architecture="llama",
    keys=keys,
    names={**LLAMA, **PAIRED},
    older={"llava_llama": "llama"},
    claims=claims,
)
