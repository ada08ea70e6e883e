"""The language model of PaddleOCR-VL, on text alone: ERNIE 4.5 with a rope of halves."""

from __future__ import annotations

from dataclasses import replace

from graphml_models.huggingface import ernie4_5

FAMILY = replace(
    ernie4_5.FAMILY,
    model_types=("paddleocr_vl_text",),
    architecture="paddleocr",
    older={"paddleocr_vl": "paddleocr_vl_text"},
)
