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
from graphml_models.huggingface.glm4_moe import SHARED, SIGMOID

BIAS = To("blk.{}.exp_probs_b", as_float32)


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with DeepSeek-V3's experts behind the first layers, which are dense."""
    metadata = llama_keys(config)
    count = int(str(metadata["block_count"]))
    kinds = config.layered("mlp_layer_types", {"dense": True, "sparse": False}, count) or [True]
    dense = sum(kinds)
    if not all(kinds[:dense]):
        raise config.error("mlp_layer_types: wanted the dense layers before all others")
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
        **TOP, **ATTENTION, **NORMS, **GATED, **HEAD_NORMS, **EXPERTS, **SHARED,
        "layers.{}.mlp.router.gate": To("blk.{}.ffn_gate_inp", as_float32),
        "layers.{}.mlp.expert_bias": BIAS,
        "layers.{}.mlp.e_score_correction_bias": BIAS,
        **{name.replace("shared_experts", "shared_mlp"): ours for name, ours in SHARED.items()},
    },
    defaults={"rope_theta": 11158840.0},
    ignored=("enable_moe_fp32_combine",),  # in float32 both sums are one
)  # fmt: skip
