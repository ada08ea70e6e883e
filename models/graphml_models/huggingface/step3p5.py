"""Step 3.5 and 3.7, their language model: of `Step3p7ForConditionalGeneration`."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, To, as_float32, plus_one
from graphml.loading.huggingface.rope import scaled_rope
from graphml_models.huggingface._names import ATTENTION, EXPERTS, GATED, TOP, expert_keys
from graphml_models.huggingface.glm4_moe import SHARED, SIGMOID

WHOLE, LOCAL = "full_attention", "sliding_attention"
LEAST = 1e-6  # a limit of GGUF's below this is none
BIAS = To("blk.{}.exp_probs_b.bias", as_float32)


def keys(config: HfConfig) -> dict[str, Value]:
    """Heads, windows, ropes and limits by layer, and experts chosen by sigmoid, whose weights sum to 1."""
    config.only("use_bidirectional_attention", False)
    config.only("gating", True, "per-head")
    metadata = decoder_keys(config)
    count, width = int(str(metadata["block_count"])), int(str(metadata["attention.key_length"]))
    kinds = _by_layer(config, "layer_types", count)
    if kinds is None:
        kinds = [WHOLE] * count
    if any(kind not in (WHOLE, LOCAL) for kind in kinds):
        raise config.error(f"layer_types: wanted {WHOLE} or {LOCAL}; got {str(kinds)[:80]}")
    windowed, window = [kind == LOCAL for kind in kinds], config.window()
    if any(windowed) and not window:
        raise config.error("sliding_window: wanted a number of tokens; got none")
    heads = int(str(metadata["attention.head_count"]))
    local = _local_heads(config, windowed, heads)
    scalar, scale = config.number("query_pre_attn_scalar", width), config.number("moe_router_scaling_factor")
    if scalar <= 0 or not scale:
        raise config.error("query_pre_attn_scalar, moe_router_scaling_factor: wanted above 0, and not 0")
    config.ignore("mlp_layer_types", "moe_layers_enum")  # as the tensors are
    return {
        **metadata,
        **expert_keys(config),
        **_ropes(config, metadata, windowed, width),
        "attention.scale": scalar**-0.5,
        "attention.head_count": [local if is_local else heads for is_local in windowed],
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": windowed,
        "expert_gating_func": SIGMOID,
        "expert_weights_norm": True,
        "expert_weights_scale": scale,
        "swiglu_clamp_exp": _limits(config, "swiglu_limits", count),
        "swiglu_clamp_shexp": _limits(config, "swiglu_limits_shared", count),
    }


def _by_layer(config: HfConfig, name: str, count: int) -> list[Any] | None:
    """A list of a value for each layer; older files have those of layers that predict further tokens, too."""
    listed, ahead = config.get(name), config.size("num_nextn_predict_layers", 0)
    if listed is None:
        return None
    if not isinstance(listed, list) or len(listed) not in (count, count + ahead):
        raise config.error(f"{name}: wanted {count} values, one a layer; got {str(listed)[:80]}")
    return listed[:count]


def _local_heads(config: HfConfig, windowed: list[bool], heads: int) -> int:
    """Heads of layers with a window."""
    older, by_layer = config.get("attention_other_setting"), config.get("per_layer_config")
    local = config.get("num_sliding_attention_heads")
    if local is None:
        local = older.get("num_attention_heads", heads) if isinstance(older, dict) and older else heads
    if by_layer is not None:
        layers = list(by_layer.values()) if isinstance(by_layer, dict) else [by_layer]
        kept = sorted(map(str, by_layer)) if isinstance(by_layer, dict) else None
        wanted = sorted(str(i) for i, is_local in enumerate(windowed) if is_local)
        if any(layer != layers[0] for layer in layers) or kept not in ([], wanted):
            raise config.error("per_layer_config: wanted the same fields for all layers with a window")
        if layers and (not isinstance(layers[0], dict) or set(layers[0]) - {"num_attention_heads"}):
            raise config.error(f"per_layer_config: wanted heads alone; got {str(layers[0])[:80]}")
        local = layers[0].get("num_attention_heads", heads) if layers else heads
    if type(local) is not int or local < 1:
        raise config.error(f"num_sliding_attention_heads: wanted a number above 0; got {str(local)[:40]}")
    return local


def _ropes(
    config: HfConfig, metadata: dict[str, Value], windowed: list[bool], width: int
) -> dict[str, Value]:
    """Of layers that see all, perhaps scaled, and of those with a window; GGUF has twice what turns there."""
    count, stated = len(windowed), config.get("rope_parameters")
    kinds = {LOCAL if is_local else WHOLE for is_local in windowed}
    if isinstance(stated, dict) and all(isinstance(stated.get(kind), dict) for kind in kinds):
        ropes = {kind: dict(stated[kind]) for kind in kinds}
    else:
        if stated:
            raise config.error(f"rope_parameters: wanted those of {sorted(kinds)}; got {str(stated)[:80]}")
        bases = config.get("rope_theta")
        bases = _by_layer(config, "rope_theta", count) if isinstance(bases, list) else [bases] * count
        parts, scaling = _by_layer(config, "partial_rotary_factors", count), config.get("rope_scaling")
        ropes = {}
        for i, is_local in reversed(list(enumerate(windowed))):
            base = 10000.0 if bases is None or bases[i] is None else bases[i]
            share = {} if not parts else {"partial_rotary_factor": parts[i]}
            ropes[LOCAL if is_local else WHOLE] = {"rope_theta": base, **share}
        if isinstance(scaling, dict) and WHOLE in ropes:
            ropes[WHOLE] |= scaling
    near, far = ropes.get(LOCAL, {"rope_theta": 10000.0}), ropes.get(WHOLE, {"rope_theta": 10000.0})
    turned, numbers = [], []
    for kind, rope in ((WHOLE, far), (LOCAL, near)):
        part = config.checked_number("partial_rotary_factor", rope.pop("partial_rotary_factor", 1.0))
        numbers.append(config.checked_number(f"rope_theta of {kind}", rope.pop("rope_theta", None)))
        turned.append(int(width * part))
    if any(n % 2 or not 2 <= n <= width for n in turned) or min(numbers) <= 0:
        raise config.error(f"partial_rotary_factor, rope_theta: wanted pairs of {width} dimensions, a base")
    if near.pop("rope_type", "default") != "default" or near:
        raise config.error(f"rope of {LOCAL}: wanted none but a base; got {str(near)[:80]}")
    scaled = scaled_rope(
        config, far, turned[0], numbers[0], int(str(metadata["context_length"])), by_kind=True
    )
    factors = config.tensors.get("rope_freqs.weight")
    if factors is not None:  # as many as the layer has that turns most
        most = max(turned[LOCAL in kinds], turned[0] * (WHOLE in kinds)) // 2
        padding = np.ones(most - len(factors), np.float32)
        config.tensors["rope_freqs.weight"] = np.concatenate([factors, padding])
    if set(config.tensors) - {"rope_freqs.weight"}:
        raise config.error(f"rope of {WHOLE}: wanted default, linear, llama3 or yarn")
    return {
        **scaled,
        "rope.dimension_count": 2 * turned[0],
        "rope.dimension_count_swa": turned[1],
        "rope.freq_base": numbers[0],
        "rope.freq_base_swa": numbers[1],
    }


def _limits(config: HfConfig, name: str, count: int) -> list[float]:
    """Of each layer; null and 0 are none."""
    listed = _by_layer(config, name, count) or [None] * count
    limits = [0.0 if limit is None else config.checked_number(name, limit) for limit in listed]
    if any(limit < 0 or 0 < limit <= LEAST for limit in limits):
        raise config.error(f"{name}: wanted numbers above {LEAST}, 0 or null; got {str(limits)[:80]}")
    return limits


FAMILY = Family(
    model_types=("step3p5",),
    architecture="step35",
    keys=keys,
    names={
        **TOP, **ATTENTION, **GATED, **EXPERTS, **SHARED,
        "norm": To("output_norm", plus_one),
        "layers.{}.input_layernorm": To("blk.{}.attn_norm", plus_one),
        "layers.{}.post_attention_layernorm": To("blk.{}.ffn_norm", plus_one),
        "layers.{}.self_attn.q_norm": To("blk.{}.attn_q_norm", plus_one),
        "layers.{}.self_attn.k_norm": To("blk.{}.attn_k_norm", plus_one),
        "layers.{}.self_attn.g_proj": "blk.{}.attn_gate",
        "layers.{}.mlp.gate.e_score_correction_bias": BIAS,
        "layers.{}.moe.router_bias": BIAS,
        "layers.{}.moe.gate": To("blk.{}.ffn_gate_inp", as_float32),
        **{f"layers.{{}}.moe.{part}_proj": f"blk.{{}}.ffn_{part}_exps" for part in ("gate", "up", "down")},
        **{
            f"layers.{{}}.share_expert.{part}_proj": f"blk.{{}}.ffn_{part}_shexp"
            for part in ("gate", "up", "down")
        },
    },
    ignored=("hidden_act", "share_expert_dim", "share_expert_dims"),
)  # fmt: skip
