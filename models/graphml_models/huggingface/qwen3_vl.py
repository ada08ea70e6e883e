"""The language model of Qwen3-VL, on text alone: Qwen 3."""

from __future__ import annotations

from dataclasses import replace

from graphml_models.huggingface import qwen3

FAMILY = replace(
    qwen3.FAMILY,
    model_types=("qwen3_vl_text",),
    architecture="qwen3vl",
    defaults={"rope_theta": 5e5},
)
