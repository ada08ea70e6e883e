"""The language model of Granite Docling, on text alone: Granite 3."""

from __future__ import annotations

from dataclasses import replace

from graphml_models.huggingface import granite

FAMILY = replace(granite.FAMILY, model_types=("granite_docling_text",), defaults={"logits_scaling": 4.0})
