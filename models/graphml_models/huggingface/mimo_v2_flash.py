"""MiMo-V2-Flash: `MiMoV2FlashForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, Names, To, as_float32
from graphml.loading.huggingface.rope import ropes_by_kind
from graphml_models.huggingface._names import ATTENTION, EXPERTS, GATED, NORMS, TOP
from graphml_models.huggingface.glm4_moe import SHARED, routing_keys

KINDS = {"sliding_attention": True, "full_attention": False}
PART = 0.334  # of a head that rotates
ROPES = {"full_attention": {"rope_theta": 5e6}, "sliding_attention": {"rope_theta": 1e4}}
SINKS = To("blk.{}.attn_sinks.weight", as_float32)


def keys(config: HfConfig) -> dict[str, Value]:
    """Windows with twice the heads of keys and a rope on another base; DeepSeek-V3's experts."""
    config.activation("silu")
    config.only("attention_bias", False)  # the architecture leaves biases out
    config.only("norm_topk_prob", True)
    metadata = decoder_keys(config)
    count, kv = int(str(metadata["block_count"])), int(str(metadata["attention.head_count_kv"]))
    windowed = config.layered("layer_types", KINDS, count)
    if windowed is None:
        windowed = [i > 0 and (i + 1) % 6 != 0 for i in range(count)]
    config.layered("mlp_layer_types", {"dense": True, "sparse": False}, count)  # as the tensors are
    window, before = config.window(), config.size("sliding_window_size", -1)
    ropes = ropes_by_kind(config, metadata, ROPES, PART)
    if "rope.scaling.type" in ropes or ropes["rope.dimension_count_swa"] != ropes["rope.dimension_count"]:
        raise config.error("rope_parameters: wanted rope_type default and one partial_rotary_factor")
    scale = config.number("attention_value_scale", 1.0)
    if scale == 0:
        raise config.error("attention_value_scale: wanted null or another number than 0")
    return {
        **metadata,
        **ropes,
        **routing_keys(config),
        "attention.head_count_kv": [kv * (1 + has_window) for has_window in windowed],
        "attention.value_length": config.size("v_head_dim"),
        "attention.value_scale": scale,
        "attention.sliding_window": window if before < 0 else before + 1,  # and the token itself
        "attention.sliding_window_pattern": [int(has_window) for has_window in windowed],
    }


NAMES: Names = {
    **TOP, **ATTENTION, **NORMS, **GATED, **EXPERTS,
    "layers.{}.mlp.gate.e_score_correction_bias": SHARED["layers.{}.mlp.gate.e_score_correction_bias"],
    "layers.{}.self_attn.attention_sink_bias": SINKS,
    "layers.{}.self_attn.sinks": SINKS,
}  # fmt: skip

FAMILY = Family(model_types=("mimo_v2_flash",), architecture="mimo2", keys=keys, names=NAMES)
