"""SmolLM3: `SmolLM3ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import LLAMA, PAIRED
from graphml_models.huggingface.qwen2 import keys as qwen2_keys


def without_rope(config: HfConfig, n_layer: int) -> list[bool]:
    """Which layers have windows: those without positions."""
    return [(i + 1) % 4 == 0 for i in range(n_layer)]


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama; every fourth layer has no positions, and any other choice of layers is refused."""
    metadata = qwen2_keys(config, without_rope, by_list=True)
    n_layer = config.size("block_count")
    config.only("no_rope_layer_interval", 4)
    config.only("no_rope_layers", [int((i + 1) % 4 != 0) for i in range(n_layer)])
    return metadata


FAMILY = Family(
    model_types=("smollm3",),
    architecture="smollm3",
    keys=keys,
    names={**LLAMA, **PAIRED},
    defaults={"rope_theta": 2e6, "tie_word_embeddings": True},
)
