"""Qwen3-Next: `Qwen3NextForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, squeezed
from graphml_models.huggingface import _delta_net, qwen3_5_moe
from graphml_models.huggingface._names import EXPERTS
from graphml_models.huggingface.qwen2_moe import SHARED


def keys(config: HfConfig) -> dict[str, Value]:
    """Delta nets and attention by turns, experts in every layer and a shared one."""
    config.only("decoder_sparse_step", 1)
    config.only("mlp_only_layers", [])
    return qwen3_5_moe.keys(config)


FAMILY = Family(
    model_types=("qwen3_next",),
    architecture="qwen3next",
    keys=keys,
    names={
        **_delta_net.NAMES, **EXPERTS, **SHARED,
        "layers.{}.linear_attn.in_proj_qkvz": "blk.{}.ssm_in",
        "layers.{}.linear_attn.in_proj_ba": "blk.{}.ssm_ba",
        "layers.{}.linear_attn.conv1d": To("blk.{}.ssm_conv1d", squeezed),
        "layers.{}.linear_attn.dt_bias": "blk.{}.ssm_dt.bias",
        "layers.{}.linear_attn.A_log": To("blk.{}.ssm_a", _delta_net.DECAY),
        "layers.{}.linear_attn.out_proj": "blk.{}.ssm_out",
    },
    defaults=_delta_net.DEFAULTS,
)  # fmt: skip
