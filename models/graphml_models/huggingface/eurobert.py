"""EuroBERT: `EuroBertModel`, and `EuroBertForMaskedLM` without its head; classifiers are refused."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import LLAMA, llama_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama."""
    return llama_keys(config)


FAMILY = Family(
    model_types=("eurobert",),
    architecture="eurobert",
    keys=keys,
    names={**LLAMA, "lm_head": None},
    logits=False,
)
