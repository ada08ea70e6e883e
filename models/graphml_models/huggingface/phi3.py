"""Phi 3 and 4: `Phi3ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import NORMS, TOP, llama_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with longrope and the window of all layers."""
    metadata = llama_keys(config)
    window = config.window()
    return {**metadata, "attention.sliding_window": window, "attention.sliding_window_pattern": 0}


FAMILY = Family(
    model_types=("phi3",),
    architecture="phi3",
    keys=keys,
    names={
        **TOP, **NORMS,
        "layers.{}.self_attn.qkv_proj": "blk.{}.attn_qkv",
        "layers.{}.self_attn.o_proj": "blk.{}.attn_output",
        "layers.{}.mlp.gate_up_proj": "blk.{}.ffn_up",
        "layers.{}.mlp.down_proj": "blk.{}.ffn_down",
    },
    older={"phi3_v": "phi3"},
)  # fmt: skip
