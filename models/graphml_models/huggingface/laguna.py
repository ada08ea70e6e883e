"""Laguna: `LagunaForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys, window_keys
from graphml.loading.huggingface.family import Family, To, as_float32
from graphml.loading.huggingface.rope import ropes_by_kind
from graphml_models.huggingface._names import (
    ATTENTION,
    EXPERTS,
    GATED,
    HEAD_NORMS,
    NORMS,
    TOP,
    expert_keys,
)
from graphml_models.huggingface.glm4_moe import SIGMOID

ROPES = {
    "full_attention": {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 1.0},
}
BIAS = To("blk.{}.exp_probs_b.bias", as_float32)


def keys(config: HfConfig) -> dict[str, Value]:
    """Heads, windows and ropes by layer, and experts chosen by sigmoid, whose weights sum to the factor."""
    config.activation("silu")
    config.only("moe_apply_router_weight_on_input", False)
    config.only("moe_router_logit_softcapping", 0.0)
    metadata = decoder_keys(config)
    count = int(str(metadata["block_count"]))
    config.layered("mlp_layer_types", {"dense": True, "sparse": False}, count)  # as the tensors are
    scale = config.number("moe_routed_scaling_factor")
    if scale == 0:
        raise config.error("moe_routed_scaling_factor: wanted another number than 0")
    windows = {} if config.get("layer_types") is None else window_keys(config, metadata)
    return {
        **metadata,
        **ropes_by_kind(config, metadata, ROPES),
        **expert_keys(config),
        **(windows or {"attention.sliding_window": 0}),
        "attention.head_count": _heads(config, count, int(str(metadata["attention.head_count"]))),
        "expert_gating_func": SIGMOID,
        "expert_weights_norm": True,
        "expert_weights_scale": scale,
        "expert_shared_feed_forward_length": config.size("expert_shared_feed_forward_length"),
    }


def _heads(config: HfConfig, count: int, n_head: int) -> list[int]:
    """Numbers of heads of queries by layer."""
    stated = config.get("num_attention_heads_per_layer")
    heads = [n_head] * count if stated is None else stated
    if not isinstance(heads, list) or len(heads) != count or any(type(n) is not int or n < 1 for n in heads):
        wanted = f"wanted {count} numbers above 0; got {str(heads)[:60]}"
        raise config.error(f"num_attention_heads_per_layer: {wanted}")
    return heads


FAMILY = Family(
    model_types=("laguna",),
    architecture="laguna",
    keys=keys,
    names={
        **TOP, **ATTENTION, **NORMS, **GATED, **HEAD_NORMS, **EXPERTS,
        "layers.{}.self_attn.g_proj": "blk.{}.attn_gate",
        "layers.{}.mlp.experts.e_score_correction_bias": BIAS,
        "layers.{}.mlp.gate.e_score_correction_bias": BIAS,
        **{
            f"layers.{{}}.mlp.{shared}.{part}_proj": f"blk.{{}}.ffn_{part}_shexp"
            for shared in ("shared_expert", "shared_experts")
            for part in ("gate", "up", "down")
        },
    },
    ignored=("gating", "sliding_window"),  # gates of heads or of elements, by the tensor's rows; no window
)  # fmt: skip
