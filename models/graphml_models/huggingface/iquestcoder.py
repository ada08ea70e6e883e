"""IQuest-Coder: a config of llama's class."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import HfConfig, Value
from graphml_models.huggingface import llama


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama; what transformers refuses, too, is refused."""
    config.only("clip_qkv")
    config.only("use_sliding_window", False)
    return llama.keys(config)


FAMILY = replace(
    llama.FAMILY,
    model_types=("iquestcoder",),
    keys=keys,
)
