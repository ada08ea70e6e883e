"""EXAONE 3 and 3.5: llama's class, the checkpoints' fields and tensors under names of their own."""

from __future__ import annotations

from graphml.loading.huggingface.config import RMS_EPS, HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import LLAMA, llama_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama; epsilon by either name."""
    metadata, epsilon = llama_keys(config), config.get("layer_norm_epsilon")
    return metadata if epsilon is None else {**metadata, RMS_EPS: config.number("layer_norm_epsilon")}


FAMILY = Family(
    model_types=("exaone",),
    architecture="exaone",
    keys=keys,
    names={
        **LLAMA,
        "wte": "token_embd",
        "ln_f": "output_norm",
        "h.{}.ln_1": "blk.{}.attn_norm",
        "h.{}.attn.attention.q_proj": "blk.{}.attn_q",
        "h.{}.attn.attention.k_proj": "blk.{}.attn_k",
        "h.{}.attn.attention.v_proj": "blk.{}.attn_v",
        "h.{}.attn.attention.out_proj": "blk.{}.attn_output",
        "h.{}.ln_2": "blk.{}.ffn_norm",
        "h.{}.mlp.c_fc_0": "blk.{}.ffn_gate",
        "h.{}.mlp.c_fc_1": "blk.{}.ffn_up",
        "h.{}.mlp.c_proj": "blk.{}.ffn_down",
    },
    defaults={"rope_theta": 5e5},
)
