"""The language model of Hunyuan V4 VL, on text alone: Hunyuan V4 with a rope of neighbours."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import RMS_EPS, HfConfig, Value
from graphml_models.huggingface import hy_v4


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Hunyuan V4; the norms of latents have the epsilon of all."""
    return hy_v4.keys(config, config.number(RMS_EPS))


FAMILY = replace(
    hy_v4.FAMILY,
    model_types=("hy_v4_vl_text",),
    keys=keys,
    names={
        **hy_v4.FAMILY.names,
        "layers.{}.self_attn.q_b_proj": "blk.{}.attn_q_b",
        "layers.{}.self_attn.kv_a_proj_with_mqa": "blk.{}.attn_kv_a_mqa",
        "layers.{}.self_attn.indexer.wq_b": "blk.{}.indexer.attn_q_b",
        "layers.{}.self_attn.indexer.wk": "blk.{}.indexer.attn_k",
        "layers.{}.self_attn.indexer.k_norm": "blk.{}.indexer.k_norm",
    },
)
