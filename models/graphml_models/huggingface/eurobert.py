"""EuroBERT: `EuroBertModel`, and `EuroBertForMaskedLM` without its head; classifiers are refused."""

from __future__ import annotations

from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import LLAMA, llama_keys

FAMILY = Family(
    model_types=("eurobert",),
    architecture="eurobert",
    keys=llama_keys,
    names={**LLAMA, "lm_head": None},
    logits=False,
)
