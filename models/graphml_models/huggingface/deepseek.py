"""DeepSeekMoE 16B: `DeepseekForCausalLM` of its authors."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import EXPERTS, LLAMA, PAIRED, llama_keys
from graphml_models.huggingface.deepseek_v2 import SOFTMAX
from graphml_models.huggingface.glm4_moe import SHARED, routing_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with experts by softmax behind the first layers."""
    config.only("scoring_func", "softmax")
    config.only("moe_layer_freq", 1)
    config.only("routed_scaling_factor", 1.0)  # which the class does not have
    return {**llama_keys(config), **routing_keys(config, SOFTMAX, grouped=False)}


FAMILY = Family(
    model_types=("deepseek",),
    architecture="deepseek",
    keys=keys,
    names={**LLAMA, **PAIRED, **EXPERTS, **SHARED},
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6},
)
