"""Llama 4, its language model: `Llama4ForCausalLM`, and of `Llama4ForConditionalGeneration`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, To, as_float32
from graphml_models.huggingface._names import ATTENTION, NORMS, TOP, llama_keys
from graphml_models.huggingface.gpt_oss import outputs
from graphml_models.llama4 import PLAIN

PERIOD = 4  # the last of so many layers has no positions


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with chunks in layers that have positions, and factors of queries in the others."""
    metadata = llama_keys(config)
    count, experts = int(str(metadata["block_count"])), config.size("expert_count")
    rotated = [(i + 1) % PERIOD != 0 for i in range(count)]
    config.only("no_rope_layer_interval", PERIOD)
    config.ignore("layer_types")
    kinds = config.layered("no_rope_layers", {1: True, 0: False}, count)
    chunked = config.layered("layer_types", {"chunked_attention": True, "full_attention": False}, count)
    if any(kinds_of_rope is not None and kinds_of_rope != rotated for kinds_of_rope in (kinds, chunked)):
        raise config.error(f"no_rope_layers, layer_types: wanted every {PERIOD}th layer to be another kind")
    if config.flag("use_qk_norm", True) != (experts != PLAIN):
        raise config.error(f"use_qk_norm: wanted norms of heads, unless there are {PLAIN} experts")
    config.only("attn_temperature_tuning", True, 4)
    config.ignore("intermediate_size_mlp", "moe_layers", "interleave_moe_layer_step")  # the tensors say it
    return {
        **metadata,
        "expert_count": experts,
        "expert_used_count": config.size("expert_used_count"),
        "attention.sliding_window": config.size("attention_chunk_size"),
        "attention.sliding_window_pattern": PERIOD,
        "attention.temperature_scale": config.number("attn_scale"),
        "attention.temperature_length": config.size("floor_scale"),
    }


FAMILY = Family(
    model_types=("llama4_text",),
    architecture="llama4",
    keys=keys,
    names={
        **TOP, **ATTENTION, **NORMS,
        "layers.{}.feed_forward.gate_proj": "blk.{}.ffn_gate",
        "layers.{}.feed_forward.up_proj": "blk.{}.ffn_up",
        "layers.{}.feed_forward.down_proj": "blk.{}.ffn_down",
        "layers.{}.feed_forward.router": To("blk.{}.ffn_gate_inp", as_float32),
        "layers.{}.feed_forward.experts.gate_up_proj": To("blk.{}.ffn_gate_up_exps.weight", outputs(None)),
        "layers.{}.feed_forward.experts.down_proj": To("blk.{}.ffn_down_exps.weight", outputs(None)),
        "layers.{}.feed_forward.shared_expert.gate_proj": "blk.{}.ffn_gate_shexp",
        "layers.{}.feed_forward.shared_expert.up_proj": "blk.{}.ffn_up_shexp",
        "layers.{}.feed_forward.shared_expert.down_proj": "blk.{}.ffn_down_shexp",
    },
    defaults={"rope_theta": 500000.0},
)  # fmt: skip
