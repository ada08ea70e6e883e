"""Qwen 3 with experts: `Qwen3MoeForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface import qwen2
from graphml_models.huggingface._names import ATTENTION, EXPERTS, HEAD_NORMS, NORMS, TOP, expert_keys
from graphml_models.qwen2moe import NORMALISE


def every_layer(config: HfConfig, n_layer: int) -> list[bool]:
    """All layers have windows, whatever `max_window_layers` is."""
    return [True] * n_layer


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Qwen 3, and the experts, in every layer."""
    config.only("decoder_sparse_step", 1)
    config.only("mlp_only_layers", [])
    metadata = {**qwen2.keys(config, every_layer), **expert_keys(config)}
    return {**metadata, NORMALISE: config.flag("norm_topk_prob")}


FAMILY = Family(
    model_types=("qwen3_moe",),
    architecture="qwen3moe",
    keys=keys,
    names={**TOP, **ATTENTION, **NORMS, **HEAD_NORMS, **EXPERTS},
    defaults={"norm_topk_prob": False, "head_dim": 128},
)
