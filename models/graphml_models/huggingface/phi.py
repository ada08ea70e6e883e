"""Phi 1, 1.5 and 2: `PhiForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import rope_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """One layer norm for attention and feed-forward beside it; norms of heads are refused."""
    config.only("qk_layernorm", False)
    metadata = decoder_keys(config, eps=LAYER_EPS)
    metadata["hidden_activation"] = config.activation("gelu", "gelu_erf")
    return metadata | rope_keys(config, metadata)


FAMILY = Family(
    model_types=("phi",),
    architecture="phi2",
    keys=keys,
    names={
        "embed_tokens": "token_embd",
        "final_layernorm": "output_norm",
        "lm_head": "output",
        "layers.{}.input_layernorm": "blk.{}.attn_norm",
        "layers.{}.self_attn.q_proj": "blk.{}.attn_q",
        "layers.{}.self_attn.k_proj": "blk.{}.attn_k",
        "layers.{}.self_attn.v_proj": "blk.{}.attn_v",
        "layers.{}.self_attn.dense": "blk.{}.attn_output",
        "layers.{}.mlp.fc1": "blk.{}.ffn_up",
        "layers.{}.mlp.fc2": "blk.{}.ffn_down",
    },
    defaults={"partial_rotary_factor": 0.5},
)
