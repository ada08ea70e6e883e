"""BLOOM: `BloomForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, To
from graphml_models.huggingface.gpt_neox import by_kind


def keys(config: HfConfig) -> dict[str, Value]:
    """Layer norms, ALiBi, GELU in its tanh form."""
    config.only("apply_residual_connection_post_layernorm", False)
    return decoder_keys(config, eps=LAYER_EPS)


FAMILY = Family(
    model_types=("bloom",),
    architecture="bloom",
    keys=keys,
    names={
        "word_embeddings": "token_embd",
        "word_embeddings_layernorm": "token_embd_norm",
        "ln_f": "output_norm",
        "lm_head": "output",
        "h.{}.input_layernorm": "blk.{}.attn_norm",
        "h.{}.self_attention.query_key_value": To("blk.{}.attn_qkv", by_kind),
        "h.{}.self_attention.dense": "blk.{}.attn_output",
        "h.{}.post_attention_layernorm": "blk.{}.ffn_norm",
        "h.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
        "h.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
    },
    defaults={"tie_word_embeddings": True},
    ignored=("slow_but_exact",),
)  # fmt: skip
