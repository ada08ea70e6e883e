"""The language model of Granite 4 Vision, on text alone: Granite 3."""

from __future__ import annotations

from dataclasses import replace

from graphml_models.huggingface import granite

FAMILY = replace(granite.FAMILY, model_types=("granite4_vision_text",), defaults={"logits_scaling": 1.0})
