"""Encoders of T5: `T5EncoderModel`, as sentence-T5 and GTR have them."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, RMS_EPS, HfConfig, Value
from graphml.loading.huggingface.family import Family

GATED = {"relu": "relu", "gated-gelu": "gelu_new"}


def keys(config: HfConfig) -> dict[str, Value]:
    """Sizes, and the number of buckets of distances; whether there is a gate is the tensors' to say."""
    config.only("relative_attention_max_distance", 128)
    config.only("is_decoder", False)
    projection = config.get("feed_forward_proj")
    config.only("feed_forward_proj", *GATED)
    config.only("dense_act_fn", GATED[projection])
    config.only("is_gated_act", projection != "relu")
    eps, heads = config.number("layer_norm_epsilon"), config.size("num_heads")
    return {
        "context_length": config.size("n_positions", 512),
        "vocab_size": config.size("vocab_size"),
        "embedding_length": config.size("d_model"),
        "block_count": config.size("num_layers"),
        "feed_forward_length": config.size("d_ff"),
        "attention.head_count": heads,
        "attention.key_length": config.size("d_kv"),
        "attention.value_length": config.size("d_kv"),
        "attention.relative_buckets_count": config.size("relative_attention_num_buckets"),
        LAYER_EPS: eps,
        RMS_EPS: eps,
    }


BLOCK = "encoder.block.{}.layer"

FAMILY = Family(
    model_types=("t5",),
    architecture="t5encoder",
    keys=keys,
    names={
        "shared": "token_embd",
        "encoder.embed_tokens": None,
        "encoder.final_layer_norm": "enc.output_norm",
        **{f"{BLOCK}.0.SelfAttention.{x}": f"enc.blk.{{}}.attn_{x}" for x in "qkvo"},
        f"{BLOCK}.0.SelfAttention.relative_attention_bias": "enc.blk.{}.attn_rel_b",
        f"{BLOCK}.0.layer_norm": "enc.blk.{}.attn_norm",
        f"{BLOCK}.1.layer_norm": "enc.blk.{}.ffn_norm",
        f"{BLOCK}.1.DenseReluDense.wi": "enc.blk.{}.ffn_up",
        f"{BLOCK}.1.DenseReluDense.wi_0": "enc.blk.{}.ffn_gate",
        f"{BLOCK}.1.DenseReluDense.wi_1": "enc.blk.{}.ffn_up",
        f"{BLOCK}.1.DenseReluDense.wo": "enc.blk.{}.ffn_down",
    },
    ignored=("num_decoder_layers",),
    logits=False,
)  # fmt: skip
