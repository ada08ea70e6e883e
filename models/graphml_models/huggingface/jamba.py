"""Jamba: `JambaForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, To, as_float32, minus_exp, squeezed
from graphml_models.huggingface._names import ATTENTION, TOP, expert_counts


def keys(config: HfConfig) -> dict[str, Value]:
    """Mamba in layers that have no heads of keys; no positions."""
    config.activation("silu")
    config.only("mamba_proj_bias", False)
    config.only("sliding_window")
    metadata = decoder_keys(config)
    count, kv = int(str(metadata["block_count"])), int(str(metadata["attention.head_count_kv"]))
    period, offset = config.size("attn_layer_period"), config.size("attn_layer_offset")
    if not 0 <= offset < period:
        raise config.error(f"attn_layer_offset: wanted less than the period {period}; got {offset}")
    # A layer's tensors say whether it has experts.
    config.ignore("expert_layer_period", "expert_layer_offset")
    width, rank = config.size("embedding_length"), config.get("mamba_dt_rank")
    return {
        **metadata,
        "attention.head_count_kv": [kv if i % period == offset else 0 for i in range(count)],
        **expert_counts(config),
        "ssm.conv_kernel": config.size("mamba_d_conv"),
        "ssm.inner_size": config.size("mamba_expand") * width,
        "ssm.state_size": config.size("mamba_d_state"),
        "ssm.time_step_rank": -(-width // 16) if rank in (None, "auto") else config.size("mamba_dt_rank"),
    }


FAMILY = Family(
    model_types=("jamba",),
    architecture="jamba",
    keys=keys,
    names={
        **TOP, **ATTENTION,
        "final_layernorm": "output_norm",
        "layers.{}.input_layernorm": "blk.{}.attn_norm",
        "layers.{}.pre_ff_layernorm": "blk.{}.ffn_norm",
        "layers.{}.mamba.in_proj": "blk.{}.ssm_in",
        "layers.{}.mamba.conv1d.weight": To("blk.{}.ssm_conv1d.weight", squeezed),
        "layers.{}.mamba.conv1d.bias": "blk.{}.ssm_conv1d.bias",
        "layers.{}.mamba.x_proj": "blk.{}.ssm_x",
        "layers.{}.mamba.dt_proj": "blk.{}.ssm_dt",
        "layers.{}.mamba.dt_layernorm": "blk.{}.ssm_dt_norm",
        "layers.{}.mamba.b_layernorm": "blk.{}.ssm_b_norm",
        "layers.{}.mamba.c_layernorm": "blk.{}.ssm_c_norm",
        "layers.{}.mamba.A_log": To("blk.{}.ssm_a", minus_exp),
        "layers.{}.mamba.D": "blk.{}.ssm_d",
        "layers.{}.mamba.out_proj": "blk.{}.ssm_out",
        "layers.{}.feed_forward.gate_proj": "blk.{}.ffn_gate",
        "layers.{}.feed_forward.up_proj": "blk.{}.ffn_up",
        "layers.{}.feed_forward.down_proj": "blk.{}.ffn_down",
        "layers.{}.feed_forward.router": To("blk.{}.ffn_gate_inp", as_float32),
        "layers.{}.feed_forward.experts.{}.gate_proj": "blk.{}.ffn_gate_exps",
        "layers.{}.feed_forward.experts.{}.up_proj": "blk.{}.ffn_up_exps",
        "layers.{}.feed_forward.experts.{}.down_proj": "blk.{}.ffn_down_exps",
        "layers.{}.feed_forward.experts.gate_up_proj": "blk.{}.ffn_gate_up_exps.weight",
        "layers.{}.feed_forward.experts.down_proj": "blk.{}.ffn_down_exps.weight",
    },
    ignored=("mamba_conv_bias", "use_associative_scan", "use_mamba_kernels", "use_mambapy"),
)  # fmt: skip
