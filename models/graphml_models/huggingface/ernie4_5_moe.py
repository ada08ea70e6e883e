"""ERNIE 4.5 with experts: `Ernie4_5_MoeForCausalLM`; its rope pairs neighbours, as GGUF's."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, after, as_float32, flat
from graphml_models.huggingface import ernie4_5
from graphml_models.huggingface._names import EXPERTS, LLAMA, expert_keys
from graphml_models.huggingface.glm4_moe import SHARED

BIAS = To("blk.{}.exp_probs_b.bias", after(flat, as_float32))


def keys(config: HfConfig) -> dict[str, Value]:
    """As of ERNIE 4.5, with experts in all layers behind the first ones."""
    metadata = {**ernie4_5.keys(config), **expert_keys(config)}
    config.only("moe_layer_interval", 1)
    config.only("moe_layer_end_index", -1, int(str(metadata["block_count"])) - 1)
    config.ignore("moe_norm_min", "moe_num_shared_experts")  # a bound of a sum; the width of the shared one
    first = config.size("moe_layer_start_index")
    return {**metadata, "leading_dense_block_count": first}


FAMILY = Family(
    model_types=("ernie4_5_moe",),
    architecture="ernie4_5-moe",
    keys=keys,
    names={
        **LLAMA, **EXPERTS, **SHARED,
        "layers.{}.mlp.moe_statics.e_score_correction_bias": BIAS,
        "layers.{}.mlp.gate.moe_statics.e_score_correction_bias": BIAS,
    },
    defaults={"rope_theta": 500000.0, "tie_word_embeddings": True},
)  # fmt: skip
