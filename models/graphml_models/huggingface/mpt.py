"""MPT: `MptForCausalLM`, whose positions are ALiBi's alone."""

from __future__ import annotations

from typing import Any

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family

WANTED: dict[str, tuple[Any, ...]] = {
    "attn_type": ("multihead_attention",), "prefix_lm": (False,), "qk_ln": (False,), "alibi": (True,),
    "attn_uses_sequence_id": (False,), "softmax_scale": (None,),
}  # fmt: skip


def keys(config: HfConfig) -> dict[str, Value]:
    """Layer norms without biases, GELU by the error function, ALiBi, bounds of q, k and v."""
    config.only("no_bias", True)
    config.only("expansion_ratio", 4)
    config.only("embedding_fraction", 1.0, 1)
    config.only("logit_scale")
    attn_config = config.get("attn_config") or {}
    if not isinstance(attn_config, dict):
        raise config.error(f"attn_config: wanted fields; got {str(attn_config)[:60]!r}")
    for name, allowed in WANTED.items():
        if attn_config.get(name, allowed[0]) not in allowed:
            raise config.error(
                f"attn_config: {name} is {str(attn_config[name])[:60]!r}: wanted {allowed[0]!r}"
            )
    clip = attn_config.get("clip_qkv")
    clip = 0.0 if clip is None else config.checked_number("clip_qkv", clip)
    if clip < 0:
        raise config.error(f"attn_config: clip_qkv: wanted null or a number above 0; got {clip}")
    return {
        **decoder_keys(config, eps=LAYER_EPS),
        "hidden_activation": "gelu_erf",
        "attention.max_alibi_bias": config.checked_number(
            "alibi_bias_max", attn_config.get("alibi_bias_max", 8)
        ),
        "attention.clamp_kqv": clip,
    }


FAMILY = Family(
    model_types=("mpt",),
    architecture="mpt",
    keys=keys,
    names={
        "wte": "token_embd",
        "norm_f": "output_norm",
        "lm_head": "output",
        "blocks.{}.norm_1": "blk.{}.attn_norm",
        "blocks.{}.attn.Wqkv": "blk.{}.attn_qkv",
        "blocks.{}.attn.out_proj": "blk.{}.attn_output",
        "blocks.{}.norm_2": "blk.{}.ffn_norm",
        "blocks.{}.ffn.up_proj": "blk.{}.ffn_up",
        "blocks.{}.ffn.down_proj": "blk.{}.ffn_down",
    },
    defaults={"tie_word_embeddings": True},
)  # fmt: skip
