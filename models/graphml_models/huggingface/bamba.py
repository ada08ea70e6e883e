"""Bamba: `BambaForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import ATTENTION, TOP, llama_keys
from graphml_models.huggingface.granitemoehybrid import PAIRED, ssm_keys
from graphml_models.huggingface.mamba2 import MIXER

PART = 0.5  # of a head that rotates, where the rope's own parameters do not say it


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with Mamba 2 in layers that have no heads of keys; Granite's graph without its factors."""
    config.only("partial_rotary_factor", PART)
    metadata = llama_keys(config)
    count, kv = int(str(metadata["block_count"])), int(str(metadata["attention.head_count_kv"]))
    attends = config.get("attn_layer_indices") or []
    if not isinstance(attends, list) or any(type(i) is not int or not 0 <= i < count for i in attends):
        raise config.error(f"attn_layer_indices: wanted numbers of layers; got {str(attends)[:60]}")
    return {
        **metadata,
        **ssm_keys(config),
        "logit_scale": 1.0,
        "attention.head_count_kv": [kv if i in attends else 0 for i in range(count)],
    }


FAMILY = Family(
    model_types=("bamba",),
    architecture="granitehybrid",
    keys=keys,
    names={
        **TOP, **ATTENTION, **PAIRED, **MIXER,
        "final_layernorm": "output_norm",
        "layers.{}.input_layernorm": "blk.{}.attn_norm",
        "layers.{}.pre_ff_layernorm": "blk.{}.ffn_norm",
        "layers.{}.mamba.in_proj": "blk.{}.ssm_in",
        "layers.{}.mamba.out_proj": "blk.{}.ssm_out",
        "layers.{}.feed_forward.gate_proj": "blk.{}.ffn_gate",
        "layers.{}.feed_forward.up_proj": "blk.{}.ffn_up",
        "layers.{}.feed_forward.down_proj": "blk.{}.ffn_down",
    },
    defaults={"partial_rotary_factor": PART},
    ignored=("mamba_chunk_size", "mamba_conv_bias", "num_logits_to_keep", "z_loss_coefficient"),
)  # fmt: skip
