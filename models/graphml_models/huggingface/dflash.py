"""Draft models of DFlash, as z-lab saves them: layers of Qwen 3 that draft a block for another model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models.huggingface._names import HEAD_NORMS, LLAMA, llama_keys, no_window

OWN = "dflash_config"
READ = {"block_size", "causal", "mask_token_id", "target_layer_ids", "use_swa", "swa_window_size"}


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Qwen 3; what is after DFlash, as in DFlash 2 and DSpark, is refused."""
    metadata = llama_keys(config)
    no_window(config, metadata)
    config.ignore("num_target_layers")
    own = config.get(OWN)
    unread = set(own) - READ if isinstance(own, dict) else {str(own)[:40]}
    if unread or not isinstance(own, dict) or own.get("use_swa"):
        raise config.error(f"{OWN}: wanted {', '.join(sorted(READ))}, and no windows; got {str(own)[:80]}")
    layers, mask = own.get("target_layer_ids"), own.get("mask_token_id")
    if not isinstance(layers, list) or not layers or any(type(of) is not int or of < 0 for of in layers):
        raise config.error(f"{OWN}.target_layer_ids: wanted numbers of layers; got {str(layers)[:60]}")
    if type(mask) is not int or mask < 0:
        raise config.error(f"{OWN}.mask_token_id: wanted the id of the mask; got {str(mask)[:20]}")
    causal = own.get("causal") if config.get("is_causal") is None else config.get("is_causal")
    if not isinstance(causal, bool | None):
        raise config.error(f"{OWN}.causal: wanted true or false; got {str(causal)[:20]}")
    size = own.get("block_size")
    return {
        **metadata,
        "attention.causal": bool(causal),
        "block_size": config.size("block_size", 16) if type(size) is not int else size,
        "mask_token_id": mask,
        "target_layers": [layer + 1 for layer in layers],  # what a layer returns is given to the next
    }


def claims(config: Mapping[str, Any]) -> str | None:
    """Configs of Qwen 3 with one of DFlash within."""
    return "dflash" if OWN in config else None


FAMILY = Family(
    model_types=("dflash",),
    architecture="dflash",
    keys=keys,
    names={**LLAMA, **HEAD_NORMS, "fc": "fc", "hidden_norm": "enc.output_norm"},
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6},
    logits=False,
    claims=claims,
)
