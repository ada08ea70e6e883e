"""Mellum 2: `MellumForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import (
    ATTENTION,
    EXPERTS,
    HEAD_NORMS,
    NORMS,
    TOP,
    expert_keys,
    llama_keys,
    windows,
)


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with windows by layer and experts in every layer; layers that predict are left out."""
    config.only("norm_topk_prob", True)
    config.get("num_nextn_predict_layers", "num_mtp_layers", "mtp_layer_types", "mtp_mlp_layer_types")
    metadata = llama_keys(config)
    if metadata.get("rope.freq_base_swa", metadata["rope.freq_base"]) != metadata["rope.freq_base"]:
        raise config.error("rope_theta: wanted one base for layers with a window and without")
    config.layered("mlp_layer_types", {"sparse": True}, int(str(metadata["block_count"])))
    found_windows = windows(config, metadata) or {"attention.sliding_window": 0}
    return {**metadata, **expert_keys(config), **found_windows}


FAMILY = Family(
    model_types=("mellum",),
    architecture="mellum",
    keys=keys,
    names={**TOP, **ATTENTION, **NORMS, **HEAD_NORMS, **EXPERTS},
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6, "norm_topk_prob": True, "head_dim": 128,
              "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 896,
              "sliding_window": 1024},
)  # fmt: skip
