"""Gemma 2: `Gemma2ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, plus_one
from graphml_models.huggingface import gemma
from graphml_models.huggingface._names import ATTENTION, GATED, TOP, windows

NAMES = {
    **TOP, **ATTENTION, **GATED, **gemma.NORMS,
    "layers.{}.post_attention_layernorm": To("blk.{}.post_attention_norm", plus_one),
    "layers.{}.pre_feedforward_layernorm": To("blk.{}.ffn_norm", plus_one),
    "layers.{}.post_feedforward_layernorm": To("blk.{}.post_ffw_norm", plus_one),
}  # fmt: skip


def keys(config: HfConfig, period: int = 2, bidirectional: bool = False) -> dict[str, Value]:
    """As of Gemma, with windows, caps (0: none) and the scale of scores; period: without `layer_types`."""
    metadata = gemma.keys(config, bidirectional)
    metadata["attention.scale"] = config.number("query_pre_attn_scalar") ** -0.5
    metadata["attn_logit_softcapping"] = config.cap("attn_logit_softcapping")
    metadata["final_logit_softcapping"] = config.cap("final_logit_softcapping")
    config.ignore("hybrid_cache", "cache_implementation")
    return metadata | (windows(config, metadata, period) or {"attention.sliding_window": 0})


FAMILY = Family(
    model_types=("gemma2",),
    architecture="gemma2",
    keys=keys,
    names=NAMES,
    defaults={"tie_word_embeddings": True},
)  # fmt: skip
