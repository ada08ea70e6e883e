"""ERNIE 4.5, dense: `Ernie4_5ForCausalLM`; its rope pairs neighbours, as GGUF's."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import LLAMA, llama_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama; biases are refused, because the architecture leaves one out."""
    config.only("use_bias", False)
    return llama_keys(config)


FAMILY = Family(
    model_types=("ernie4_5",),
    architecture="ernie4_5",
    keys=keys,
    names=LLAMA,
    defaults={"rope_theta": 500000.0, "tie_word_embeddings": True},
)  # fmt: skip
