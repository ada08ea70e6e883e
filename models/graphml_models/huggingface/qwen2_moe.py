"""Qwen 1.5 and 2 with experts: `Qwen2MoeForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, Names, To, as_float32
from graphml_models.huggingface import qwen2
from graphml_models.huggingface._names import ATTENTION, EXPERTS, NORMS, TOP, expert_keys
from graphml_models.qwen2moe import NORMALISE

SHARED: Names = {
    "layers.{}.mlp.shared_expert_gate": To("blk.{}.ffn_gate_inp_shexp", as_float32),
    "layers.{}.mlp.shared_expert.gate_proj": "blk.{}.ffn_gate_shexp",
    "layers.{}.mlp.shared_expert.up_proj": "blk.{}.ffn_up_shexp",
    "layers.{}.mlp.shared_expert.down_proj": "blk.{}.ffn_down_shexp",
}


SLIDING = "sliding_attention"


def every_other(config: HfConfig, n_layer: int) -> list[bool]:
    """Which layers have windows: the first, the third and so on, of those before `max_window_layers`."""
    end = config.size(qwen2.WHOLE)
    return [i % 2 == 0 and i < end for i in range(n_layer)]


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Qwen 2, with experts in every layer, and a shared one."""
    config.only("decoder_sparse_step", 1)
    config.only("mlp_only_layers", [])
    shared = config.size("expert_shared_feed_forward_length")
    metadata = qwen2.keys(config, every_other)
    if not config.flag("use_sliding_window") and SLIDING in str(config.get("layer_types")):
        raise config.error(f"use_sliding_window is false: wanted no {SLIDING} in layer_types")
    experts = {**expert_keys(config), NORMALISE: config.flag("norm_topk_prob")}
    return {**metadata, **experts, "expert_shared_feed_forward_length": shared}


FAMILY = Family(
    model_types=("qwen2_moe",),
    architecture="qwen2moe",
    keys=keys,
    names={
        **TOP, **ATTENTION, **NORMS, **EXPERTS, **SHARED,
    },
)  # fmt: skip
