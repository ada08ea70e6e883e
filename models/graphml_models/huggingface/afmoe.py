"""Trinity: `AfmoeForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, as_float32
from graphml_models.huggingface._names import (
    ATTENTION,
    EXPERTS,
    GATED,
    HEAD_NORMS,
    TOP,
    expert_keys,
    llama_keys,
    windows,
)
from graphml_models.huggingface.glm4_moe import SHARED, SIGMOID

PERIOD = 4  # the last of so many layers sees all and has no positions


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with windows in all layers but every fourth, and DeepSeek-V3's experts."""
    config.only("mup_enabled", True)
    config.only("global_attn_every_n_layers", PERIOD)
    config.only("score_func", "sigmoid")
    config.only("route_norm", True)
    metadata = {**llama_keys(config), **expert_keys(config)}
    count = int(str(metadata["block_count"]))
    kinds = config.layered("layer_types", {"sliding_attention": True, "full_attention": False}, count)
    if kinds is not None and kinds != [(i + 1) % PERIOD != 0 for i in range(count)]:
        raise config.error(f"layer_types: wanted a window in all layers but every {PERIOD}th")
    return {
        **metadata,
        **windows(config, metadata, period=PERIOD),
        "expert_gating_func": SIGMOID,
        "expert_weights_norm": True,
        "expert_weights_scale": config.number("route_scale"),
        "expert_shared_count": config.size("expert_shared_count"),
        "leading_dense_block_count": config.size("num_dense_layers"),
    }


FAMILY = Family(
    model_types=("afmoe",),
    architecture="afmoe",
    keys=keys,
    names={
        **TOP, **ATTENTION, **GATED, **HEAD_NORMS, **EXPERTS, **SHARED,
        "layers.{}.self_attn.gate_proj": "blk.{}.attn_gate",
        "layers.{}.input_layernorm": "blk.{}.attn_norm",
        "layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
        "layers.{}.pre_mlp_layernorm": "blk.{}.ffn_norm",
        "layers.{}.post_mlp_layernorm": "blk.{}.post_ffw_norm",
        "layers.{}.mlp.router.gate": To("blk.{}.ffn_gate_inp", as_float32),
        "layers.{}.mlp.expert_bias": To("blk.{}.exp_probs_b.bias", as_float32),
    },
)  # fmt: skip
