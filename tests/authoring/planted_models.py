"""Tiny models of the architectures in `planted`, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import golden
from tests.sample_models import kind_of

HERE = Path(__file__).parent / "planted"
D, N, K, H, F, V, LAYERS = 32, 4, 2, 8, 40, 48, 2

Tensors = dict[str, Any]

KEYS: dict[str, Any] = {
    "context_length": 64, "vocab_size": V, "embedding_length": D, "block_count": LAYERS,
    "attention.head_count": N, "attention.head_count_kv": K, "attention.key_length": H,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "gated": {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 500.0,
              "attention.sliding_window": 6, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 3.0},
    "plain": {"attention.layer_norm_epsilon": 1e-5, "residual_scale": 0.4, "logit_scale": 0.25},
    "experts": {"attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 4,
                "rope.scaling.factor": 4.0, "expert_used_count": 2, "expert_weights_scale": 2.5,
                "expert_group_count": 2, "expert_group_used_count": 1},
}  # fmt: skip
ROTARY = {"attn_norm.weight": (D,), "attn_q.weight": (N * H, D), "attn_k.weight": (K * H, D),
          "attn_v.weight": (K * H, D), "attn_output.weight": (D, N * H), "ffn_norm.weight": (D,)}  # fmt: skip
LAYER: dict[str, dict[str, tuple[int, ...]]] = {
    "gated": {**ROTARY, "attn_q.bias": (N * H,), "attn_k.bias": (K * H,), "attn_q_norm.weight": (H,),
              "attn_k_norm.weight": (H,), "attn_sinks.weight": (N,), "post_attention_norm.weight": (D,),
              "ffn_gate.weight": (F, D), "ffn_up.weight": (F, D), "ffn_down.weight": (D, F)},
    "plain": {"attn_norm.weight": (D,), "attn_norm.bias": (D,), "attn_qkv.weight": (3 * D, D),
              "attn_qkv.bias": (3 * D,), "attn_output.weight": (D, D), "attn_output.bias": (D,),
              "ffn_norm.weight": (D,), "ffn_norm.bias": (D,), "ffn_up.weight": (F, D), "ffn_up.bias": (F,),
              "ffn_down.weight": (D, F), "ffn_down.bias": (D,)},
    "experts": {**ROTARY, "attn_output.scale": (1,), "ffn_gate_inp.weight": (4, D),
                "ffn_gate_exps.weight": (4, F, D), "ffn_up_exps.weight": (4, F, D),
                "ffn_down_exps.weight": (4, D, F), "ffn_gate_shexp.weight": (F, D),
                "ffn_up_shexp.weight": (F, D), "ffn_down_shexp.weight": (D, F)},
}  # fmt: skip
TOP: dict[str, dict[str, tuple[int, ...]]] = {
    "gated": {"output_norm.weight": (D,), "output.weight": (V, D), "rope_freqs.weight": (H // 2,)},
    "plain": {"output_norm.weight": (D,), "output_norm.bias": (D,), "position_embd.weight": (64, D)},
    "experts": {"output_norm.weight": (D,), "output.weight": (V, D)},
}


def write_model(path: Path, name: str, broken: Callable[[Tensors], None] | None = None, **keys: int) -> Path:
    """The model of a planted architecture with random weights; norms and factors far from 1.

    keys: other values of integers in its metadata.
    """
    shapes = {"token_embd.weight": (V, D), **TOP[name]}
    shapes |= {f"blk.{i}.{part}": shape for i in range(LAYERS) for part, shape in LAYER[name].items()}
    tensors: Tensors = {one: golden.weights(one, shape[::-1], seed=3) for one, shape in shapes.items()}
    for one in tensors:
        if "norm" in one or one.endswith((".bias", ".scale")) or "rope_f" in one:
            tensors[one] = 1 + 4 * (tensors[one] - 1) if not one.endswith(".bias") else 4 * tensors[one]
    if broken is not None:
        broken(tensors)
    told = {**KEYS, **MORE[name], **keys}
    metadata = {f"{name}.{key}": (kind_of(value), value) for key, value in told.items()}
    return golden.write_gguf(path, name, {**metadata, "general.architecture": ("STRING", name)}, tensors)
