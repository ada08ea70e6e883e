"""GLM-4.5: `Glm4MoeForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, Names
from graphml_models.huggingface._names import (
    ATTENTION,
    EXPERTS,
    GATED,
    HEAD_NORMS,
    TOP,
    expert_keys,
    llama_keys,
)

SIGMOID = 2  # GGUF's number
SHARED: Names = {
    "layers.{}.mlp.shared_experts.gate_proj": "blk.{}.ffn_gate_shexp",
    "layers.{}.mlp.shared_experts.up_proj": "blk.{}.ffn_up_shexp",
    "layers.{}.mlp.shared_experts.down_proj": "blk.{}.ffn_down_shexp",
    "layers.{}.mlp.gate.e_score_correction_bias": "blk.{}.exp_probs_b.bias",
}


def routing_keys(config: HfConfig, gating: int = SIGMOID, grouped: bool = True) -> dict[str, Value]:
    """Experts as DeepSeek-V3 has them; gating: of the scores; grouped: whether the choice is by groups."""
    groups, used = config.size("expert_group_count", 0), config.size("expert_group_used_count", 0)
    groups, used = (groups, used) if grouped else (0, 0)
    if groups > int(gating != SIGMOID) and not 1 <= used <= groups:
        raise config.error(f"topk_group: wanted 1 to {groups} of the {groups} groups; got {used}")
    experts = expert_keys(config)
    n_expert, n_used = (int(str(experts[f"expert_{kind}count"])) for kind in ("", "used_"))
    if groups > 1 and n_expert % groups:
        raise config.error(f"n_group: wanted a number that divides the {n_expert} experts; got {groups}")
    if groups and n_expert * used // groups < n_used < n_expert:
        wanted = f"wanted at most {n_expert * used // groups}, as {used} of {groups} groups have, or all"
        raise config.error(f"num_experts_per_tok: {wanted}; got {n_used}")
    return {
        **experts,
        "expert_shared_count": config.size("expert_shared_count", 0),
        "expert_group_count": groups,
        "expert_group_used_count": used,
        "expert_weights_norm": config.flag("norm_topk_prob"),
        "expert_weights_scale": config.number("expert_weights_scale", 1.0),
        "leading_dense_block_count": config.size("leading_dense_block_count", 0),
        "expert_gating_func": gating,
    }


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with experts; layers that predict further tokens are left out."""
    config.flag("use_qk_norm")
    config.ignore("num_nextn_predict_layers")
    return {**llama_keys(config), **routing_keys(config)}


FAMILY = Family(
    model_types=("glm4_moe",),
    architecture="glm4moe",
    keys=keys,
    names={
        **TOP, **ATTENTION, **GATED, **HEAD_NORMS, **EXPERTS, **SHARED,
        "layers.{}.input_layernorm": "blk.{}.attn_norm",
        "layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    },
    defaults={"partial_rotary_factor": 0.5, "head_dim": 128},
)  # fmt: skip
