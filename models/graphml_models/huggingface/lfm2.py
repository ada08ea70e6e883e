"""LFM2: `Lfm2ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, Names, To, squeezed
from graphml.loading.huggingface.rope import rope_keys

NAMES: Names = {
    "embed_tokens": "token_embd",
    "embedding_norm": "token_embd_norm",
    "lm_head": "output",
    "layers.{}.operator_norm": "blk.{}.attn_norm",
    "layers.{}.ffn_norm": "blk.{}.ffn_norm",
    "layers.{}.self_attn.q_proj": "blk.{}.attn_q",
    "layers.{}.self_attn.k_proj": "blk.{}.attn_k",
    "layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "layers.{}.self_attn.out_proj": "blk.{}.attn_output",
    "layers.{}.self_attn.q_layernorm": "blk.{}.attn_q_norm",
    "layers.{}.self_attn.k_layernorm": "blk.{}.attn_k_norm",
    "layers.{}.conv.in_proj": "blk.{}.shortconv.in_proj",
    "layers.{}.conv.conv": To("blk.{}.shortconv.conv", squeezed),
    "layers.{}.conv.out_proj": "blk.{}.shortconv.out_proj",
    "layers.{}.feed_forward.w1": "blk.{}.ffn_gate",
    "layers.{}.feed_forward.w2": "blk.{}.ffn_down",
    "layers.{}.feed_forward.w3": "blk.{}.ffn_up",
}


def _width(config: HfConfig) -> int:
    """Of feed-forwards: two thirds of the stated one, rounded up, unless that is said not to be."""
    adjusted, replaces = "block_auto_adjust_ff_dim", "block_ff_dim"
    width = config.size("feed_forward_length" if config.get(replaces) is None else replaces)
    config.ignore("intermediate_size", "block_ffn_dim_multiplier", "block_multiple_of")
    if not config.is_read(adjusted) or not config.flag(adjusted):
        return width
    width, times = int(2 * width / 3), config.get("block_ffn_dim_multiplier")
    if times is None:
        return width
    multiple = max(config.size("block_multiple_of", 256), 1)
    return -(-int(config.checked_number("block_ffn_dim_multiplier", times) * width) // multiple) * multiple


def keys(config: HfConfig) -> dict[str, Value]:
    """Sizes, rope, and the layers with attention, which alone have heads of keys."""
    config.only("conv_bias", False)
    config.only("tie_embedding", config.flag("tie_word_embeddings"))  # transformers reads the former
    metadata = decoder_keys(config, width=_width(config))
    count = int(str(metadata["block_count"]))
    attends = config.layered("layer_types", {"full_attention": True, "conv": False}, count)
    if attends is None:
        chosen = config.get("full_attn_idxs") or range(count)
        attends = [i in chosen for i in range(count)]
    config.ignore("full_attn_idxs")
    heads = int(str(metadata["attention.head_count_kv"]))
    metadata["attention.head_count_kv"] = [heads if has_attention else 0 for has_attention in attends]
    metadata["shortconv.l_cache"] = config.size("conv_L_cache")
    return metadata | rope_keys(config, metadata)


FAMILY = Family(
    model_types=("lfm2",),
    architecture="lfm2",
    keys=keys,
    names=NAMES,
    defaults={"rope_theta": 1e6},
)
