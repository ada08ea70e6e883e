"""StarCoder and SantaCoder: `GPTBigCodeForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family


def keys(config: HfConfig) -> dict[str, Value]:
    """As of GPT-2, with one head of keys for all."""
    config.activation("gelu")
    config.only("multi_query", True)
    config.only("scale_attn_weights", True)
    config.only("add_cross_attention", False)
    metadata = decoder_keys(config, eps=LAYER_EPS)
    config.ignore("num_key_value_heads")
    return {**metadata, "attention.head_count_kv": 1}


FAMILY = Family(
    model_types=("gpt_bigcode",),
    architecture="starcoder",
    keys=keys,
    names={
        "wte": "token_embd",
        "wpe": "position_embd",
        "ln_f": "output_norm",
        "lm_head": "output",
        "h.{}.ln_1": "blk.{}.attn_norm",
        "h.{}.attn.c_attn": "blk.{}.attn_qkv",
        "h.{}.attn.c_proj": "blk.{}.attn_output",
        "h.{}.ln_2": "blk.{}.ffn_norm",
        "h.{}.mlp.c_fc": "blk.{}.ffn_up",
        "h.{}.mlp.c_proj": "blk.{}.ffn_down",
        "h.{}.attn.bias": None,  # the causal mask
    },
    defaults={"tie_word_embeddings": True},
    ignored=("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
)  # fmt: skip
