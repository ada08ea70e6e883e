"""Language models of GLM-4.1V, GLM-4.6V Flash and GLM-OCR, on text alone: GLM-4 0414."""

from __future__ import annotations

from dataclasses import replace

from graphml_models.huggingface import glm4

FAMILY = replace(glm4.FAMILY, model_types=("glm4v_text", "glm_ocr_text"), defaults={})
