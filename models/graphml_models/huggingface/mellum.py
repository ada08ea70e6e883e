"""Mellum 2: `MellumForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys, window_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import ropes_by_kind
from graphml_models.huggingface._names import EXPERTS, HEAD_NORMS, LLAMA, expert_keys
from graphml_models.qwen2moe import NORMALISE

ROPES = {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4}}


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Qwen 3 with experts, with windows and ropes by kind of layer; dense layers as the tensors are."""
    config.activation("silu")
    metadata = decoder_keys(config)
    count = int(str(metadata["block_count"]))
    config.layered("mlp_layer_types", {"dense": True, "sparse": False}, count)
    windows = {} if config.get("layer_types") is None else window_keys(config, metadata)
    ropes = ropes_by_kind(config, metadata, ROPES)
    turning = {ropes["rope.dimension_count"], ropes["rope.dimension_count_swa"]}
    if turning != {metadata["attention.key_length"]}:
        raise config.error("rope_parameters: wanted no partial_rotary_factor")
    return {
        **metadata,
        **ropes,
        **expert_keys(config),
        **(windows or {"attention.sliding_window": 0}),
        NORMALISE: config.flag("norm_topk_prob"),
    }


FAMILY = Family(
    model_types=("mellum",),
    architecture="mellum",
    keys=keys,
    names={**LLAMA, **HEAD_NORMS, **EXPERTS},
    ignored=("mtp_layer_types", "mtp_mlp_layer_types", "num_mtp_layers", "sliding_window"),
)
