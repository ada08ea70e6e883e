"""Hunyuan V3: `HYV3ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, as_float32
from graphml_models.huggingface._names import (
    ATTENTION,
    EXPERTS,
    GATED,
    HEAD_NORMS,
    NORMS,
    TOP,
    expert_keys,
    llama_keys,
)
from graphml_models.huggingface.glm4_moe import SIGMOID

BIAS = To("blk.{}.exp_probs_b", as_float32)


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with DeepSeek-V3's experts behind the first layers, which are dense."""
    metadata = llama_keys(config)
    count = int(str(metadata["block_count"]))
    kinds = config.layered("mlp_layer_types", {"dense": True, "sparse": False}, count) or [True]
    dense = sum(kinds)
    if not all(kinds[:dense]):
        raise config.error("mlp_layer_types: wanted the dense layers before all others")
    config.get("enable_moe_fp32_combine")  # in float32 both sums are one
    return {
        **metadata,
        **expert_keys(config),
        "expert_gating_func": SIGMOID,
        "expert_weights_norm": True,
        "expert_weights_scale": config.number("router_scaling_factor"),
        "expert_shared_count": config.size("expert_shared_count"),
        "leading_dense_block_count": dense,
    }


FAMILY = Family(
    model_types=("hy_v3",),
    architecture="hy_v3",
    keys=keys,
    names={
        **TOP, **ATTENTION, **NORMS, **GATED, **HEAD_NORMS, **EXPERTS,
        "layers.{}.mlp.router.gate": To("blk.{}.ffn_gate_inp", as_float32),
        "layers.{}.mlp.expert_bias": BIAS,
        "layers.{}.mlp.e_score_correction_bias": BIAS,
        "layers.{}.mlp.shared_mlp.gate_proj": "blk.{}.ffn_gate_shexp",
        "layers.{}.mlp.shared_mlp.up_proj": "blk.{}.ffn_up_shexp",
        "layers.{}.mlp.shared_mlp.down_proj": "blk.{}.ffn_down_shexp",
        "layers.{}.mlp.shared_experts.gate_proj": "blk.{}.ffn_gate_shexp",
        "layers.{}.mlp.shared_experts.up_proj": "blk.{}.ffn_up_shexp",
        "layers.{}.mlp.shared_experts.down_proj": "blk.{}.ffn_down_shexp",
    },
    defaults={"rope_theta": 11158840.0},
)  # fmt: skip
