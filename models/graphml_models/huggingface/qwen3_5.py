"""Qwen3.5, its language model: `Qwen3_5ForCausalLM`, and of `Qwen3_5ForConditionalGeneration`."""

from __future__ import annotations

from graphml.loading.huggingface.family import Family, Names, To, after, squeezed
from graphml_models.huggingface import _delta_net
from graphml_models.huggingface._delta_net import columns, last_values, values
from graphml_models.huggingface._names import GATED

NAMES: Names = {
    **_delta_net.NAMES,
    "layers.{}.linear_attn.in_proj_qkv": To("blk.{}.attn_qkv", last_values),
    "layers.{}.linear_attn.in_proj_z": To("blk.{}.attn_gate", values),
    "layers.{}.linear_attn.in_proj_b": To("blk.{}.ssm_beta", values),
    "layers.{}.linear_attn.in_proj_a": To("blk.{}.ssm_alpha", values),
    "layers.{}.linear_attn.conv1d": To("blk.{}.ssm_conv1d", after(squeezed, last_values)),
    "layers.{}.linear_attn.dt_bias": To("blk.{}.ssm_dt.bias", values),
    "layers.{}.linear_attn.A_log": To("blk.{}.ssm_a", after(_delta_net.DECAY, values)),
    "layers.{}.linear_attn.out_proj": To("blk.{}.ssm_out", columns),
}

FAMILY = Family(
    model_types=("qwen3_5_text",),
    architecture="qwen35",
    keys=_delta_net.keys,
    names={**NAMES, **GATED},
    defaults=_delta_net.DEFAULTS,
)
