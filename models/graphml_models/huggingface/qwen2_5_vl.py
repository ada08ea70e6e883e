"""Language models of Qwen2-VL, Qwen2.5-VL and Qwen2.5-Omni, on text alone: Qwen 2."""

from __future__ import annotations

from dataclasses import replace

from graphml_models.huggingface import qwen2

FAMILY = replace(
    qwen2.FAMILY,
    model_types=("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text"),
    architecture="qwen2vl",
    defaults={"rope_theta": 1e6},
    older={"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"},
)
