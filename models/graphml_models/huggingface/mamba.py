"""Mamba and FalconMamba: `MambaForCausalLM`, `FalconMambaForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, Names, To, minus_exp, squeezed

NAMES: Names = {
    "embeddings": "token_embd",
    "norm_f": "output_norm",
    "lm_head": "output",
    "layers.{}.norm": "blk.{}.attn_norm",
    "layers.{}.mixer.in_proj": "blk.{}.ssm_in",
    "layers.{}.mixer.conv1d.weight": To("blk.{}.ssm_conv1d.weight", squeezed),
    "layers.{}.mixer.conv1d.bias": "blk.{}.ssm_conv1d.bias",
    "layers.{}.mixer.out_proj": "blk.{}.ssm_out",
    "layers.{}.mixer.A_log": To("blk.{}.ssm_a", minus_exp),
}


def shared_keys(config: HfConfig) -> dict[str, Value]:
    """What Mamba 2 has too."""
    config.activation("silu")
    config.only("residual_in_fp32", True, False)
    config.only("rescale_prenorm_residual", False)  # at which the class divides loaded weights
    return {
        "context_length": config.size("context_length", 1 << 20),
        "vocab_size": config.size("vocab_size"),
        "embedding_length": config.size("embedding_length"),
        "block_count": config.size("block_count"),
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": config.number("layer_norm_epsilon"),
        "ssm.conv_kernel": config.size("conv_kernel"),
        "ssm.state_size": config.size("state_size"),
    }


def keys(config: HfConfig) -> dict[str, Value]:
    """The sizes of state and convolution; FalconMamba norms B, C and dt without weights."""
    width = config.size("embedding_length")
    rank = config.get("time_step_rank")
    norms = config.get("model_type") == "falcon_mamba"
    return {
        **shared_keys(config),
        "ssm.inner_size": config.size("intermediate_size", config.size("expand") * width),
        "ssm.time_step_rank": -(-width // 16) if rank in (None, "auto") else config.size("time_step_rank"),
        "ssm.dt_b_c_rms": norms,
        "ssm.dt_b_c_rms_epsilon": config.number("mixer_rms_eps", 1e-6) if norms else 1e-5,
    }


FAMILY = Family(
    model_types=("mamba", "falcon_mamba"),
    architecture="mamba",
    keys=keys,
    names={
        **NAMES,
        "layers.{}.mixer.x_proj": "blk.{}.ssm_x",
        "layers.{}.mixer.dt_proj": "blk.{}.ssm_dt",
        "layers.{}.mixer.D": "blk.{}.ssm_d",
    },
    defaults={"tie_word_embeddings": True},
    ignored=("time_step_floor", "time_step_init_scheme", "time_step_max", "time_step_min", "time_step_scale",
             "use_associative_scan", "use_conv_bias", "use_mambapy", "use_falcon_mambapy"),
)  # fmt: skip
