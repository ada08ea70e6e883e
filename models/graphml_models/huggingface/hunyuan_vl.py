"""The language model of HunyuanOCR, on text alone: Hunyuan dense."""

from __future__ import annotations

from dataclasses import replace

from graphml_models.huggingface import hunyuan_v1_dense

FAMILY = replace(
    hunyuan_v1_dense.FAMILY,
    model_types=("hunyuan_vl_text",),
    architecture="hunyuan_vl",
    defaults={"tie_word_embeddings": True},
    older={"hunyuan_vl": "hunyuan_vl_text"},
)
