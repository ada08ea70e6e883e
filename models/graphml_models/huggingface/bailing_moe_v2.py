"""Ling 2.0 and Ring 2.0: `BailingMoeV2ForCausalLM` of its authors; Sarvam 30B has its names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphml.loading.huggingface.config import HfConfig, Value
from graphml_models.huggingface import sarvam_moe


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Sarvam; what the class can do otherwise is refused."""
    config.only("score_function", "sigmoid")
    for name in ("moe_router_enable_expert_bias", "use_rmsnorm"):
        config.only(name, True)
    config.only("use_sliding_window", False)
    config.ignore(  # widths of tensors, the training's, and windows that are off
        "max_window_layers", "moe_shared_expert_intermediate_size", "mtp_loss_scaling_factor",
        "num_nextn_predict_layers", "output_dropout", "router_dtype", "sliding_window",
    )  # fmt: skip
    return sarvam_moe.keys(config)


def claims(config: Mapping[str, Any]) -> str | None:
    """Configs of the class under the model_type of Ling 1."""
    return "bailing_moe_v2" if config.get("architectures") == ["BailingMoeV2ForCausalLM"] else None


FAMILY = replace(
    sarvam_moe.FAMILY,
    model_types=("bailing_moe_v2",),
    keys=keys,
    defaults={"hidden_act": "silu", "rope_theta": 600000.0, "norm_topk_prob": True, "rms_norm_eps": 1e-6},
    claims=claims,
)
