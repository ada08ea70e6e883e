"""Qwen 3: `Qwen3ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import HEAD_NORMS, LLAMA
from graphml_models.huggingface.llama import is_minicpm_v
from graphml_models.huggingface.qwen2 import keys


def claims(config: Mapping[str, Any]) -> str | None:
    """MiniCPM-V and MiniCPM-o 4.5."""
    return "qwen3" if is_minicpm_v(config, "4.5") else None


FAMILY = Family(
    model_types=("qwen3",),
    architecture="qwen3",
    keys=keys,
    names={**LLAMA, **HEAD_NORMS},
    claims=claims,
)
