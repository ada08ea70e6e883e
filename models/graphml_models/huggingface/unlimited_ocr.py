"""Unlimited-OCR, its language model: DeepSeek-OCR's, whose window is not computed, as in llama.cpp."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphml.loading.huggingface.config import HfConfig, Value
from graphml_models.huggingface import deepseek_ocr2

LOG = logging.getLogger(__name__)


def keys(config: HfConfig) -> dict[str, Value]:
    """As of DeepSeek-OCR; a warning says what the class does otherwise."""
    config.ignore("layer_types")
    window = config.window()
    if window:
        LOG.warning(
            "%s: attention sees the whole text, as in llama.cpp: the class has new tokens see the prompt and "
            "the last %d of their own",
            config.path, window,
        )  # fmt: skip
    return deepseek_ocr2.keys(config)


def claims(config: Mapping[str, Any]) -> str | None:
    """Its authors' config, with the window of the larger model."""
    is_its = deepseek_ocr2.is_without_latents(config) and config.get("sliding_window") is not None
    return "unlimited_ocr_text" if is_its else None


FAMILY = replace(deepseek_ocr2.FAMILY, model_types=("unlimited_ocr_text",), keys=keys, claims=claims)
