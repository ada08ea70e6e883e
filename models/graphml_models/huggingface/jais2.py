"""Jais 2: `Jais2ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface._names import LLAMA


def keys(config: HfConfig) -> dict[str, Value]:
    """Layer norms, squared ReLU, rope of whole heads."""
    config.activation("relu_squared")
    metadata = decoder_keys(config, eps=LAYER_EPS)
    return metadata | rope_keys(config, metadata)


FAMILY = Family(
    model_types=("jais2",),
    architecture="jais2",
    keys=keys,
    names=LLAMA,
)
