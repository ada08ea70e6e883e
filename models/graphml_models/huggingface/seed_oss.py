"""Seed-OSS: `SeedOssForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import ATTENTION, GATED, TOP, llama_keys

FAMILY = Family(
    model_types=("seed_oss",),
    architecture="seed_oss",
    keys=llama_keys,
    names={
        **TOP, **ATTENTION, **GATED,
        "layers.{}.input_layernorm": "blk.{}.attn_norm",
        "layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    },
    ignored=("attention_out_bias",),
)  # fmt: skip
