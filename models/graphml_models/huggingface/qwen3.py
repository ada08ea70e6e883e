"""Qwen 3: `Qwen3ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import HEAD_NORMS, LLAMA
from graphml_models.huggingface.qwen2 import keys

FAMILY = Family(
    model_types=("qwen3",),
    architecture="qwen3",
    keys=keys,
    names={**LLAMA, **HEAD_NORMS},
)
