"""Cohere 2 with experts: `Cohere2MoeForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, RMS_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface import cohere
from graphml_models.huggingface._names import EXPERTS
from graphml_models.huggingface.glm4_moe import SHARED

GATING = {"softmax": 1, "sigmoid": 2}  # GGUF's numbers


def keys(config: HfConfig) -> dict[str, Value]:
    """Either kind of norm, windows whose layers have positions, experts."""
    config.activation("silu")
    rms = config.get("rms_norm_eps") is not None
    if rms and not config.number(RMS_EPS):
        raise config.error("rms_norm_eps: wanted null or another number than 0")
    metadata = decoder_keys(config, eps=RMS_EPS if rms else LAYER_EPS)
    config.ignore("layer_norm_eps")
    gating = GATING.get(str(config.get("expert_selection_fn")))
    if gating is None:
        raise config.error("expert_selection_fn: wanted softmax or sigmoid")
    if config.size("expert_shared_count", 0):
        config.only("shared_expert_combination_strategy", "average")
    config.ignore("shared_expert_combination_strategy", "prefix_dense_intermediate_size")
    return {
        **metadata,
        **rope_keys(config, metadata),
        **layer_keys(config, int(str(metadata["block_count"]))),
        "logit_scale": config.number("logit_scale"),
        "expert_count": config.size("expert_count"),
        "expert_used_count": config.size("expert_used_count"),
        "expert_gating_func": gating,
        "expert_weights_norm": config.flag("norm_topk_prob") or gating == GATING["softmax"],
        "expert_feed_forward_length": metadata["feed_forward_length"],
    }


def layer_keys(config: HfConfig, count: int) -> dict[str, Value]:
    """Which layers have windows, and how many first ones positions in any case."""
    kinds = {"sliding_attention": True, "full_attention": False}
    routed = config.layered("mlp_layer_types", {"dense": False, "sparse": True}, count)
    prefix = config.size("leading_dense_block_count", 0)  # says what lists do, where they are missing
    n_dense = prefix if routed is None else routed.count(False)
    if routed is not None and routed != [i >= n_dense for i in range(count)]:
        raise config.error("mlp_layer_types: wanted dense layers before sparse ones")
    first, other = config.size("prefix_dense_sliding_window_pattern"), config.size("sliding_window_pattern")
    windowed = config.layered("layer_types", kinds, count)
    if windowed is None:
        if min(first, other) < 1 or prefix > count:
            raise config.error("layer_types: wanted a list, which says what layers have a window")
        windowed = [bool((i + 1) % first) for i in range(prefix)]
        windowed += [bool((i + 1) % other) for i in range(count - prefix)]
    if any(windowed) and not config.window():
        raise config.error("sliding_window: wanted a number of tokens for layers with a window")
    return {
        "leading_dense_block_count": n_dense if first == 1 else 0,
        "attention.sliding_window": config.window(),
        "attention.sliding_window_pattern": [int(has_window) for has_window in windowed],
    }


FAMILY = Family(
    model_types=("cohere2_moe",),
    architecture="cohere2moe",
    keys=keys,
    names={**cohere.NAMES, **EXPERTS, **SHARED},
)
