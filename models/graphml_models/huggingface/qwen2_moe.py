"""Qwen 1.5 and 2 with experts: `Qwen2MoeForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, Names, To, as_float32
from graphml_models.huggingface import qwen2
from graphml_models.huggingface._names import ATTENTION, EXPERTS, NORMS, TOP, expert_keys

SHARED: Names = {
    "layers.{}.mlp.shared_expert_gate": To("blk.{}.ffn_gate_inp_shexp", as_float32),
    "layers.{}.mlp.shared_expert.gate_proj": "blk.{}.ffn_gate_shexp",
    "layers.{}.mlp.shared_expert.up_proj": "blk.{}.ffn_up_shexp",
    "layers.{}.mlp.shared_expert.down_proj": "blk.{}.ffn_down_shexp",
}


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Qwen 2, with experts in every layer, whose weights are not normalised, and a shared one."""
    config.only("norm_topk_prob", False)
    config.only("decoder_sparse_step", 1)
    config.only("mlp_only_layers", [])
    shared = config.size("expert_shared_feed_forward_length")
    metadata = qwen2.keys(config, from_a_layer_on=False)
    return {**metadata, **expert_keys(config), "expert_shared_feed_forward_length": shared}


FAMILY = Family(
    model_types=("qwen2_moe",),
    architecture="qwen2moe",
    keys=keys,
    names={
        **TOP, **ATTENTION, **NORMS, **EXPERTS, **SHARED,
    },
)  # fmt: skip
