"""Names of tensors that many families share, and keys of llama-like decoders."""

from __future__ import annotations

from collections.abc import Mapping

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys, window_keys
from graphml.loading.huggingface.family import Names, To, as_float32, paired
from graphml.loading.huggingface.rope import rope_keys

TOP: Names = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
ATTENTION: Names = {
    "layers.{}.self_attn.q_proj": "blk.{}.attn_q",
    "layers.{}.self_attn.k_proj": "blk.{}.attn_k",
    "layers.{}.self_attn.v_proj": "blk.{}.attn_v",
    "layers.{}.self_attn.o_proj": "blk.{}.attn_output",
}
PAIRED: Names = {
    "layers.{}.self_attn.q_proj": To("blk.{}.attn_q", paired("attention.head_count")),
    "layers.{}.self_attn.k_proj": To("blk.{}.attn_k", paired("attention.head_count_kv")),
}
"""Queries and keys of architectures whose rope pairs neighbours."""
HEAD_NORMS: Names = {
    "layers.{}.self_attn.q_norm": "blk.{}.attn_q_norm",
    "layers.{}.self_attn.k_norm": "blk.{}.attn_k_norm",
}
NORMS: Names = {
    "layers.{}.input_layernorm": "blk.{}.attn_norm",
    "layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
}
GATED: Names = {
    "layers.{}.mlp.gate_proj": "blk.{}.ffn_gate",
    "layers.{}.mlp.up_proj": "blk.{}.ffn_up",
    "layers.{}.mlp.down_proj": "blk.{}.ffn_down",
}
EXPERTS: Names = {
    "layers.{}.mlp.gate": To("blk.{}.ffn_gate_inp", as_float32),
    "layers.{}.mlp.experts.{}.gate_proj": "blk.{}.ffn_gate_exps",
    "layers.{}.mlp.experts.{}.up_proj": "blk.{}.ffn_up_exps",
    "layers.{}.mlp.experts.{}.down_proj": "blk.{}.ffn_down_exps",
    "layers.{}.mlp.experts.gate_up_proj": "blk.{}.ffn_gate_up_exps.weight",
    "layers.{}.mlp.experts.down_proj": "blk.{}.ffn_down_exps.weight",
}
"""One by one, as checkpoints have them, or all in one tensor, as transformers 5 holds them."""
LLAMA: Names = {**TOP, **ATTENTION, **NORMS, **GATED}


def llama_keys(config: HfConfig, activation: str = "silu") -> dict[str, Value]:
    """Keys of a decoder with RMS norms and rope, and a feed-forward with this activation."""
    config.activation(activation)
    keys = decoder_keys(config)
    return keys | rope_keys(config, keys)


def no_window(config: HfConfig, keys: Mapping[str, Value]) -> None:
    """Refuse windows where the architecture has none; one that is off, or as long as the context, is none."""
    window = config.get("sliding_window")
    used = config.flag("use_sliding_window", True)
    config.ignore("max_window_layers")
    n_layer = int(str(keys["block_count"]))
    kinds = config.layered("layer_types", {"full_attention": False, "sliding_attention": True}, n_layer)
    if kinds is not None:
        used = any(kinds)
    if window is not None and used and window < int(str(keys["context_length"])):
        raise config.error(f"sliding_window is {str(window)[:20]}: this architecture has no windows")


def windows(config: HfConfig, keys: Mapping[str, Value], period: int | None = None) -> dict[str, Value]:
    """The window of layers by `layer_types`, or by a period: of so many layers the last has none."""
    if config.get("layer_types") is not None or period is None:
        return window_keys(config, keys)
    size = config.window()
    return {"attention.sliding_window": size, "attention.sliding_window_pattern": period} if size else {}


def expert_keys(config: HfConfig, width: str = "expert_feed_forward_length") -> dict[str, Value]:
    """Numbers of experts and their width; width: the GGUF key whose field has it."""
    return {**expert_counts(config), "expert_feed_forward_length": config.size(width)}


def expert_counts(config: HfConfig) -> dict[str, Value]:
    """Numbers of experts, and of those that a token uses."""
    return {name: config.size(name) for name in ("expert_count", "expert_used_count")}
