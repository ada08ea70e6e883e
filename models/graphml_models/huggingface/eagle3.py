"""Heads of EAGLE-3, as SpecForge, speculators and ModelOpt save them, which draft for another model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, Names, To
from graphml.loading.huggingface.packed_matrix import PackedMatrix
from graphml.weights import Tensor
from graphml.weights.deferred import DeferredTensor
from graphml_models.drafters.eagle3 import N_ROWS, USUAL_LAYERS
from graphml_models.huggingface._names import GATED, PAIRED, llama_keys

LAYERS = "eagle_aux_hidden_state_layer_ids"
IGNORED = ("draft_vocab_size", "embed_requires_grad", "speculators_config", "speculators_model_type",
           "speculators_version", "target_model_type", "transformer_layer_config")  # fmt: skip


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama; which layers of the other model are read, and how wide it is."""
    metadata = llama_keys(config)
    own = config.get("eagle_config") or {}
    layers = config.get(LAYERS) or (own.get(LAYERS) if isinstance(own, dict) else None)
    if layers is None:
        metadata[USUAL_LAYERS] = True
    elif isinstance(layers, list) and len(layers) == N_ROWS and all(type(layer) is int for layer in layers):
        metadata["target_layers"] = layers
    else:
        raise config.error(f"{LAYERS}: wanted the numbers of {N_ROWS} layers; got {str(layers)[:60]}")
    config.ignore(*IGNORED)
    return {
        **metadata,
        "target_hidden_size": config.size("target_hidden_size", int(str(metadata["embedding_length"]))),
        "norm_before_residual": config.flag("norm_before_residual"),
        "norm_before_fc": config.flag("norm_before_fc"),
    }


def claims(config: Mapping[str, Any]) -> str | None:
    """Configs of a llama of one layer that have the number of ids that it drafts."""
    return "eagle3" if "draft_vocab_size" in config and config.get("num_hidden_layers") == 1 else None


def _ids(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """The ids that are drafted, of how far each is behind its place."""
    if tensor.dtype not in ("i32", "i64") or isinstance(tensor, PackedMatrix):
        raise config.error(f"{name}: wanted whole numbers; got {tensor.dtype}")
    count = tensor.n_elements

    def compute() -> np.ndarray[Any, np.dtype[np.uint8]]:
        ids = tensor.numpy().reshape(-1).astype(np.int64) + np.arange(count)
        return ids.view(np.uint8)

    return DeferredTensor.of(name, "i64", (count,), compute)


_LAYER: Names = {
    **GATED, **PAIRED,
    "layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "layers.{}.self_attn.o_proj": "blk.{}.attn_output",
    "layers.{}.input_layernorm": "blk.{}.attn_norm",
    "layers.{}.hidden_norm": "blk.{}.attn_norm_2",
    "layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
}  # fmt: skip


def _of_first(target: Any) -> Any:
    """The same of the first layer, under a name without a number."""
    if isinstance(target, To):
        return To(target.name.format(0), target.change)
    return str(target).format(0)


FAMILY = Family(
    model_types=("eagle3",),
    architecture="eagle3",
    keys=keys,
    names={
        **_LAYER,
        **{name.replace("layers.{}", "midlayer"): _of_first(target) for name, target in _LAYER.items()},
        "embed_tokens": "token_embd",
        "fc": "fc",
        "input_norm": "enc.output_norm",
        "norm": "output_norm",
        "lm_head": "output",
        "d2t": To("d2t", _ids),
        "t2d": None,
    },
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6},
    logits=False,
    claims=claims,
)
