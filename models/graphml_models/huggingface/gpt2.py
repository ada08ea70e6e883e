"""GPT-2: `GPT2LMHeadModel`, whose matrices are stored as [in, out]."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, To, transposed


def keys(config: HfConfig) -> dict[str, Value]:
    """Layer norms, learned positions, GELU in its tanh form."""
    config.activation("gelu")
    config.only("scale_attn_weights", True)
    config.only("scale_attn_by_inverse_layer_idx", False)
    config.only("add_cross_attention", False)
    return decoder_keys(config, eps="attention.layer_norm_epsilon")


FAMILY = Family(
    model_types=("gpt2",),
    architecture="gpt2",
    keys=keys,
    names={
        "wte": "token_embd",
        "wpe": "position_embd",
        "ln_f": "output_norm",
        "lm_head": "output",
        "h.{}.ln_1": "blk.{}.attn_norm",
        "h.{}.attn.c_attn": To("blk.{}.attn_qkv", transposed),
        "h.{}.attn.c_proj": To("blk.{}.attn_output", transposed),
        "h.{}.ln_2": "blk.{}.ffn_norm",
        "h.{}.mlp.c_fc": To("blk.{}.ffn_up", transposed),
        "h.{}.mlp.c_proj": To("blk.{}.ffn_down", transposed),
        "h.{}.attn.bias": None,  # the causal mask
        "h.{}.attn.masked_bias": None,
    },
    defaults={"tie_word_embeddings": True},
    ignored=("reorder_and_upcast_attn",),
)
