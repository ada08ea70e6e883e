"""Encoders of mT5 and umT5, whose feed-forwards have gates; umT5 has distances in every layer."""

from __future__ import annotations

from dataclasses import replace

from graphml_models.huggingface import t5

FAMILY = replace(
    t5.FAMILY,
    model_types=("mt5", "umt5"),
    defaults={**t5.FAMILY.defaults, "feed_forward_proj": "gated-gelu", "vocab_size": 250112},
)
