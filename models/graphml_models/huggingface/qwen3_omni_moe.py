"""The language model of Qwen3-Omni, on text alone: Qwen 3 with experts."""

from __future__ import annotations

from dataclasses import replace

from graphml_models.huggingface import qwen3_moe

FAMILY = replace(
    qwen3_moe.FAMILY,
    model_types=("qwen3_omni_moe_text",),
    defaults={"rope_theta": 1e6},
)
