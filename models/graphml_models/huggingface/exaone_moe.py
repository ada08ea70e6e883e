"""K-EXAONE: `ExaoneMoeForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import (
    ATTENTION,
    EXPERTS,
    GATED,
    HEAD_NORMS,
    NORMS,
    TOP,
    llama_keys,
    windows,
)
from graphml_models.huggingface.glm4_moe import SHARED, routing_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with windows, whose layers alone have positions, and DeepSeek-V3's experts."""
    metadata = {**llama_keys(config), **routing_keys(config)}
    dense, count = int(str(metadata["leading_dense_block_count"])), int(str(metadata["block_count"]))
    kinds = config.layered("mlp_layer_types", {"dense": False, "sparse": True}, count)
    if kinds is not None and kinds != [i >= dense for i in range(count)]:
        raise config.error(f"mlp_layer_types: wanted the first {dense} layers to be dense, and no others")
    config.ignore("sliding_window_pattern", "num_nextn_predict_layers")  # layer_types spells the pattern out
    if config.get("sliding_window") is None:
        raise config.error("sliding_window: wanted a number of tokens: layers with a window have positions")
    return metadata | windows(config, metadata)


FAMILY = Family(
    model_types=("exaone_moe",),
    architecture="exaone-moe",
    keys=keys,
    names={
        **TOP, **ATTENTION, **NORMS, **GATED, **HEAD_NORMS, **EXPERTS, **SHARED,
        "layers.{}.mlp.e_score_correction_bias": "blk.{}.exp_probs_b.bias",
    },
)  # fmt: skip
