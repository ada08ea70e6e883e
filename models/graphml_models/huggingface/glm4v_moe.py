"""The language model of GLM-4.5V and GLM-4.6V, on text alone: GLM-4.5."""

from __future__ import annotations

from dataclasses import replace

from graphml_models.huggingface import glm4_moe

FAMILY = replace(glm4_moe.FAMILY, model_types=("glm4v_moe_text",), defaults={"partial_rotary_factor": 0.5})
