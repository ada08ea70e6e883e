"""AFM of Arcee: `ArceeForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import LLAMA, PAIRED, llama_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with squared ReLU and no gates."""
    return llama_keys(config, "relu_squared")


FAMILY = Family(
    model_types=("arcee",),
    architecture="arcee",
    keys=keys,
    names={**LLAMA, **PAIRED},
)
