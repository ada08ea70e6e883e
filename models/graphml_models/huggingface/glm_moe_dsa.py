"""GLM-5: `GlmMoeDsaForCausalLM`, DeepSeek-V3.2 of which not all layers have an index."""

from __future__ import annotations

from dataclasses import replace

from graphml.loading.huggingface.config import HfConfig, Value
from graphml_models.huggingface import deepseek_v32

TYPES = {"full": True, "shared": False}


def keys(config: HfConfig) -> dict[str, Value]:
    """As of DeepSeek-V3.2; which layers choose for those behind them too."""
    metadata = deepseek_v32.keys(config)
    count = int(str(metadata["block_count"]))
    full = config.layered("indexer_types", TYPES, count)
    if config.get("index_topk_pattern") is not None:
        raise config.error("index_topk_pattern: wanted a list indexer_types in its place")
    every, offset = _whole(config, "index_topk_freq", 1), _whole(config, "index_skip_topk_offset", 2)
    if full is None:
        full = [max(i - offset + 1, 0) % max(every, 1) == 0 for i in range(count)]
    if not full[0]:
        raise config.error("indexer_types: wanted a full index in the first layer")
    return metadata | {"attention.indexer.types": [int(kind) for kind in full]}


def _whole(config: HfConfig, name: str, default: int) -> int:
    """A number of layers, which may be 0."""
    value = config.get(name)
    if value is None:
        return default
    if type(value) is not int or value < 0:
        raise config.error(f"{name}: wanted a whole number from 0 on; got {str(value)[:40]}")
    return value


FAMILY = replace(
    deepseek_v32.FAMILY,
    model_types=("glm_moe_dsa",),
    architecture="glm-dsa",
    keys=keys,
)  # fmt: skip
