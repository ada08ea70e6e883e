"""InternLM3: a config of llama's class."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import HfConfig, Value
from graphml_models.huggingface import llama


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama; biases are there or not."""
    config.ignore("qkv_bias", "bias")
    return llama.keys(config)


FAMILY = replace(
    llama.FAMILY,
    model_types=("internlm3",),
    keys=keys,
)
