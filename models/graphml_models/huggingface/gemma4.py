"""Gemma 4, its language model: `Gemma4ForCausalLM`, and of `Gemma4ForConditionalGeneration`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys, window_keys
from graphml.loading.huggingface.family import Family, To, as_float32
from graphml_models.huggingface._names import ATTENTION, GATED, HEAD_NORMS, TOP

STILL = 1e30  # what divides the frequencies of pairs that do not rotate


def keys(config: HfConfig) -> dict[str, Value]:
    """Heads of two widths, layers that share caches, inputs of their own for layers, experts."""
    config.activation("gelu")
    config.only("use_bidirectional_attention", "vision")
    config.ignore("use_double_wide_mlp")  # the tensors have the width
    metadata = decoder_keys(config)
    local, kv = int(str(metadata["attention.key_length"])), int(str(metadata["attention.head_count_kv"]))
    none = [False] * int(str(metadata["block_count"]))
    metadata |= {"attention.sliding_window": 0, "attention.sliding_window_pattern": none}
    metadata |= window_keys(config, metadata)
    windowed = metadata["attention.sliding_window_pattern"]
    assert isinstance(windowed, list)
    wide, wide_kv = full_heads(config, windowed, kv)
    metadata |= {
        "attention.head_count_kv": [kv if is_local else wide_kv for is_local in windowed],
        "attention.key_length": wide,
        "attention.value_length": wide,
        "attention.key_length_swa": local,
        "attention.value_length_swa": local,
        "attention.shared_kv_layers": config.size("num_kv_shared_layers"),
        "embedding_length_per_layer_input": config.size("hidden_size_per_layer_input", 0),
        "final_logit_softcapping": config.cap("final_logit_softcapping"),
        **ropes(config, local, wide),
    }
    config.only("vocab_size_per_layer_input", config.size("vocab_size"))
    config.ignore("moe_intermediate_size")  # the tensors have the width
    count, used = config.size("num_experts", 0), config.size("top_k_experts", 0)
    if config.flag("enable_moe_block"):
        metadata |= {"expert_count": count, "expert_used_count": used}
    return metadata


def full_heads(config: HfConfig, windowed: list[Any], kv: int) -> tuple[int, int]:
    """Width of heads, and heads of keys, of layers that see all."""
    shares = config.flag("attention_k_eq_v")
    width, count = config.get("global_head_dim"), config.get("num_global_key_value_heads")
    by_layer = config.get("per_layer_config")
    if isinstance(by_layer, dict) and by_layer:
        by_layer = {layer.lstrip("0") or "0": fields for layer, fields in by_layer.items()}  # "05" of twelve
        known = {str(i): by_layer.get(str(i)) for i, is_local in enumerate(windowed) if not is_local}
        first = next(iter(known.values()), None)
        if (
            known != by_layer
            or not isinstance(first, dict)
            or any(layer_config != first for layer_config in known.values())
        ):
            raise config.error("per_layer_config: wanted the same fields for all layers without a window")
        if set(first) - {"head_dim", "num_key_value_heads"}:
            raise config.error(f"per_layer_config: wanted heads alone; got {sorted(first)}")
        width = width or first.get("head_dim")
        count = first.get("num_key_value_heads", count)
        shares = shares or "num_key_value_heads" in first
    width = 512 if width is None else width
    count = kv if count is None or not shares else count
    if type(width) is not int or type(count) is not int or width < 2 or count < 1:
        raise config.error(f"global_head_dim: wanted a width of heads and a number; got {width}, {count}")
    return width, count


ROPES: Mapping[str, Mapping[str, Any]] = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
"""Where config.json says nothing of a kind of layers."""


def ropes(config: HfConfig, local: int, wide: int) -> dict[str, Value]:
    """Of layers with a window plain; of others a part of the pairs rotates, over the whole width."""
    ropes = config.get("rope_parameters") or {}
    if not isinstance(ropes, dict) or set(ropes) - set(ROPES):
        raise config.error(f"rope_parameters: wanted {tuple(ROPES)} alone; got {str(ropes)[:100]}")
    full, near = (dict(ropes.get(kind) or ROPES[kind]) for kind in ROPES)
    kind, part = full.pop("rope_type", "default"), full.pop("partial_rotary_factor", 1.0)
    bases = full.pop("rope_theta", None), near.pop("rope_theta", None)
    if kind != "proportional" or full or near.pop("rope_type", "default") != "default" or near:
        raise config.error(f"rope_parameters: wanted proportional and default; got {str(ropes)[:100]}")
    turning = int(config.checked_number("partial_rotary_factor", part) * wide // 2)
    factors = np.where(np.arange(wide // 2) < turning, 1.0, STILL)
    config.tensors["rope_freqs.weight"] = factors.astype(np.float32)
    return {
        "rope.dimension_count": wide,
        "rope.dimension_count_swa": local,
        "rope.freq_base": config.checked_number("rope_theta", bases[0]),
        "rope.freq_base_swa": config.checked_number("rope_theta", bases[1]),
    }


FAMILY = Family(
    model_types=("gemma4_text",),
    architecture="gemma4",
    keys=keys,
    names={
        **TOP, **ATTENTION, **GATED, **HEAD_NORMS,
        "embed_tokens_per_layer": "per_layer_token_embd",
        "per_layer_model_projection": "per_layer_model_proj",
        "per_layer_projection_norm": "per_layer_proj_norm",
        "layers.{}.input_layernorm": "blk.{}.attn_norm",
        "layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
        "layers.{}.pre_feedforward_layernorm": "blk.{}.ffn_norm",
        "layers.{}.post_feedforward_layernorm": "blk.{}.post_ffw_norm",
        "layers.{}.per_layer_input_gate": "blk.{}.inp_gate",
        "layers.{}.per_layer_projection": "blk.{}.proj",
        "layers.{}.post_per_layer_input_norm": "blk.{}.post_norm",
        "layers.{}.layer_scalar": "blk.{}.layer_output_scale.weight",
        "layers.{}.router.proj": To("blk.{}.ffn_gate_inp", as_float32),
        "layers.{}.router.scale": To("blk.{}.ffn_gate_inp.scale", as_float32),
        "layers.{}.router.per_expert_scale": To("blk.{}.ffn_down_exps.scale", as_float32),
        "layers.{}.experts.gate_up_proj": "blk.{}.ffn_gate_up_exps.weight",
        "layers.{}.experts.down_proj": "blk.{}.ffn_down_exps.weight",
        "layers.{}.post_feedforward_layernorm_1": "blk.{}.post_ffw_norm_1",
        "layers.{}.post_feedforward_layernorm_2": "blk.{}.post_ffw_norm_2",
        "layers.{}.pre_feedforward_layernorm_2": "blk.{}.pre_ffw_norm_2",
    },
    defaults={"tie_word_embeddings": True, "num_key_value_heads": 4},
)  # fmt: skip
