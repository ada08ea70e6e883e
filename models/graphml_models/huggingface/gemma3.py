"""Gemma 3: `Gemma3ForCausalLM`, and the language model of `Gemma3ForConditionalGeneration`.

EmbeddingGemma, too: `Gemma3TextModel` whose tokens see both sides of a text.
"""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, plus_one
from graphml_models.huggingface import gemma2


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Gemma 2; windowed layers have a rope of their own, caps of scores must be off.

    Where attention is bidirectional, half of a window is on either side, in both.
    """
    config.only("attn_logit_softcapping", 0.0)
    metadata = gemma2.keys(config, config.size("_sliding_window_pattern", 0) or PERIOD, bidirectional=True)
    period = config.get("sliding_window_pattern")
    if type(period) is int and type(metadata.get("attention.sliding_window_pattern")) is int:
        metadata["attention.sliding_window_pattern"] = period
    del metadata["attn_logit_softcapping"]
    return metadata | {"attention.causal": not config.flag("use_bidirectional_attention")}


PERIOD = 6

FAMILY = Family(
    model_types=("gemma3_text",),
    architecture="gemma3",
    keys=keys,
    names={
        **gemma2.NAMES,
        "layers.{}.self_attn.q_norm": To("blk.{}.attn_q_norm", plus_one),
        "layers.{}.self_attn.k_norm": To("blk.{}.attn_k_norm", plus_one),
    },
    defaults={"tie_word_embeddings": True, "rope_theta": 1e6, "rope_local_base_freq": 10000.0},
)  # fmt: skip
