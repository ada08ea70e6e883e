"""GLM-4.7-Flash: `Glm4MoeLiteForCausalLM`, DeepSeek-V3's attention and experts."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import HfConfig, Value
from graphml_models.huggingface import deepseek_v3


def keys(config: HfConfig) -> dict[str, Value]:
    """As of DeepSeek-V3; a list of kinds says how many first layers are dense."""
    metadata = deepseek_v3.keys(config)
    count = int(str(metadata["block_count"]))
    routed = config.layered("mlp_layer_types", {"dense": False, "sparse": True}, count)
    n_dense = 1 if routed is None else routed.count(False)
    if routed is not None and routed != [i >= n_dense for i in range(count)]:
        raise config.error("mlp_layer_types: wanted dense layers before sparse ones")
    return metadata | {"leading_dense_block_count": n_dense}


FAMILY = replace(
    deepseek_v3.FAMILY,
    model_types=("glm4_moe_lite",),
    keys=keys,
)  # fmt: skip
