"""LFM2 with experts: `Lfm2MoeForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, as_float32
from graphml_models.huggingface import lfm2
from graphml_models.huggingface._names import expert_keys
from graphml_models.huggingface.glm4_moe import SIGMOID


def keys(config: HfConfig) -> dict[str, Value]:
    """As of LFM2, with experts in all layers behind the first ones."""
    config.only("norm_topk_prob", True)
    config.flag("use_expert_bias")  # the tensor is there or not
    return {
        **lfm2.keys(config),
        **expert_keys(config),
        "expert_gating_func": SIGMOID,
        "expert_weights_scale": config.number("expert_weights_scale"),
        "leading_dense_block_count": config.size("num_dense_layers"),
    }


FAMILY = Family(
    model_types=("lfm2_moe",),
    architecture="lfm2moe",
    keys=keys,
    names={
        **lfm2.NAMES,
        "layers.{}.feed_forward.gate": To("blk.{}.ffn_gate_inp", as_float32),
        "layers.{}.feed_forward.expert_bias": To("blk.{}.exp_probs_b.bias", as_float32),
        "layers.{}.feed_forward.experts.{}.w1": "blk.{}.ffn_gate_exps",
        "layers.{}.feed_forward.experts.{}.w2": "blk.{}.ffn_down_exps",
        "layers.{}.feed_forward.experts.{}.w3": "blk.{}.ffn_up_exps",
        "layers.{}.feed_forward.experts.gate_up_proj": "blk.{}.ffn_gate_up_exps.weight",
        "layers.{}.feed_forward.experts.down_proj": "blk.{}.ffn_down_exps.weight",
    },
    defaults=lfm2.FAMILY.defaults,
)  # fmt: skip
