"""Kimi Linear: `KimiLinearForCausalLM`."""

from __future__ import annotations

from typing import Any

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, Names, To, after, flat, minus_exp
from graphml_models.huggingface._names import ATTENTION, EXPERTS, GATED, NORMS, TOP, expert_keys
from graphml_models.huggingface.deepseek_v3 import FAMILY as DEEPSEEK
from graphml_models.huggingface.glm4_moe import SHARED, SIGMOID

EPS = 1e-6  # of the class, whatever rms_norm_eps is, in norms of narrow values and in lengths


def keys(config: HfConfig) -> dict[str, Value]:
    """Latent attention without positions in layers that have heads of keys, and DeepSeek-V3's experts."""
    config.activation("silu")
    if _either(config, "moe_renormalize", "norm_topk_prob") is not True:
        raise config.error("moe_renormalize: this architecture knows true alone")
    metadata = decoder_keys(config)
    count, rank = int(str(metadata["block_count"])), config.size("attention.kv_lora_rank")
    rotated, width = config.size("qk_rope_head_dim"), config.size("qk_nope_head_dim")
    linear = config.get("linear_attn_config") or {}
    if not isinstance(linear, dict):
        raise config.error(f"linear_attn_config: wanted an object; got {str(linear)[:60]}")
    sizes = (("head_dim", "linear_head_dim"), ("num_heads", "linear_num_heads"),
             ("short_conv_kernel_size", "linear_conv_kernel_dim"))  # fmt: skip
    head_dim, heads, n_conv = (linear.get(theirs, config.size(ours)) for theirs, ours in sizes)
    if any(type(size) is not int or size < 1 for size in (head_dim, heads, n_conv)):
        raise config.error(f"linear_attn_config: wanted sizes above 0; got {str(linear)[:60]}")
    if heads != metadata["attention.head_count"]:
        raise config.error(f"linear_num_heads: wanted as many heads as attention has; got {heads}")
    config.layered("mlp_layer_types", {"dense": True, "sparse": False}, count)
    groups, used = _either(config, "num_expert_group", "n_group"), config.size("topk_group")
    if type(groups) is not int or not 1 <= used <= groups:
        raise config.error(f"topk_group: wanted 1 to {str(groups)[:20]} of the groups; got {used}")
    return {
        **metadata,
        **expert_keys(config),
        "context_length": config.size("model_max_length", 0) or config.size("context_length", 1 << 20),
        "attention.head_count_kv": [int(attends) for attends in _attending(config, linear, count)],
        "attention.key_length": rank + rotated,
        "attention.key_length_mla": width + rotated,
        "attention.value_length": rank,
        "attention.value_length_mla": config.size("v_head_dim"),
        "attention.kv_lora_rank": rank,
        "attention.latent_norm_rms_epsilon": EPS,
        "rope.dimension_count": rotated,  # nothing rotates: the part of a key that all heads share
        "kda.head_dim": head_dim,
        "kda.unit_epsilon": EPS,
        "ssm.conv_kernel": n_conv,
        "expert_gating_func": SIGMOID,
        "expert_shared_count": config.size("expert_shared_count"),
        "expert_group_count": groups,
        "expert_group_used_count": used,
        "expert_weights_scale": config.number("expert_weights_scale"),
    }


def _either(config: HfConfig, name: str, other: str) -> Any:
    """A field of two names; refused where both are there and differ."""
    value, stated = config.get(other, name), config.get(name)
    if stated is not None and value != stated:
        raise config.error(f"{name} and {other}: wanted one value; got {str((stated, value))[:60]}")
    return value


def _attending(config: HfConfig, linear: dict[str, Any], count: int) -> list[bool]:
    """Which layers have attention: by `layer_types`, or by lists of numbers from 1 on."""
    kinds = config.layered("layer_types", {"full_attention": True, "linear_attention": False}, count)
    if kinds is not None:
        return kinds
    if "full_attn_layers" not in linear or "kda_layers" not in linear:
        return [i > 0 and i % 4 == 0 for i in range(count)]
    full, others = linear["full_attn_layers"], linear["kda_layers"]
    if not isinstance(full, list) or not isinstance(others, list):
        raise config.error("linear_attn_config: wanted lists full_attn_layers and kda_layers")
    numbers = full + others
    if any(type(number) is not int for number in numbers) or sorted(numbers) != list(range(1, count + 1)):
        raise config.error(f"linear_attn_config: wanted each layer from 1 to {count} in one of its lists")
    return [i + 1 in full for i in range(count)]


MLP: Names = {
    **EXPERTS, **GATED, **SHARED,
    "layers.{}.mlp.experts.{}.w1": "blk.{}.ffn_gate_exps",
    "layers.{}.mlp.experts.{}.w3": "blk.{}.ffn_up_exps",
    "layers.{}.mlp.experts.{}.w2": "blk.{}.ffn_down_exps",
}  # fmt: skip
DELTA: Names = {
    **{f"layers.{{}}.self_attn.{x}_conv1d": f"blk.{{}}.ssm_conv1d_{x}" for x in "qkv"},
    "layers.{}.self_attn.A_log": To("blk.{}.ssm_a", after(minus_exp, flat)),
    "layers.{}.self_attn.dt_bias": "blk.{}.ssm_dt.bias",
    "layers.{}.self_attn.b_proj": "blk.{}.ssm_beta",
    "layers.{}.self_attn.f_a_proj": "blk.{}.ssm_f_a",
    "layers.{}.self_attn.f_b_proj": "blk.{}.ssm_f_b",
    "layers.{}.self_attn.g_a_proj": "blk.{}.ssm_g_a",
    "layers.{}.self_attn.g_b_proj": "blk.{}.ssm_g_b",
    "layers.{}.self_attn.o_norm": "blk.{}.ssm_norm",
}
FAMILY = Family(
    model_types=("kimi_linear",),
    architecture="kimi-linear",
    keys=keys,
    names={
        **TOP, **NORMS, **ATTENTION, **DEEPSEEK.names, **DELTA, **MLP,
        **{name.replace(".mlp.", ".block_sparse_moe."): ours for name, ours in MLP.items()},
    },
    ignored=("first_k_dense_replace", "num_key_value_heads", "q_lora_rank"),  # the tensors say two of them
)  # fmt: skip
