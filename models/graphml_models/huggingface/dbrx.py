"""DBRX: `DbrxForCausalLM`, whose experts are matrices one under the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Change, Family, To, as_float32, calculated
from graphml.loading.huggingface.rope import rope_keys
from graphml.weights import Tensor

FFN = {"ffn_act_fn": {"name": "silu"}, "ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1,
       "moe_normalize_expert_weights": 1.0}  # fmt: skip


def stated(config: HfConfig, name: str, assumed: dict[str, Any]) -> dict[str, Any]:
    """The fields of a part, and what its class assumes for those that it lacks."""
    fields = config.get(name)
    if not isinstance(fields, dict | None):
        raise config.error(f"{name}: wanted fields; got {str(fields)[:60]!r}")
    return {**assumed, **(fields or {})}


def count(config: HfConfig, fields: dict[str, Any], name: str) -> int:
    """A number above 0 of a part."""
    number = fields[name]
    if type(number) is not int or not 1 <= number < 1 << 24:
        raise config.error(f"{name}: wanted a number above 0; got {str(number)[:60]!r}")
    return number


def experts(config: HfConfig) -> dict[str, Any]:
    """The fields of the feed-forward."""
    fields = stated(config, "ffn_config", FFN)
    activation = fields["ffn_act_fn"]
    if activation is not None and (
        not isinstance(activation, dict) or activation.get("name", "silu") != "silu"
    ):
        raise config.error(f"ffn_config: ffn_act_fn: wanted silu; got {str(activation)[:60]}")
    if fields["moe_normalize_expert_weights"] != 1:
        raise config.error("ffn_config: moe_normalize_expert_weights: wanted 1, weights that sum to 1")
    return fields


def keys(config: HfConfig) -> dict[str, Value]:
    """Layer norms without biases, bounds of q, k and v, experts in all layers."""
    attends, ffn = stated(config, "attn_config", {"clip_qkv": None, "kv_n_heads": 1}), experts(config)
    width = count(config, ffn, "ffn_hidden_size")
    metadata = {
        **decoder_keys(config, eps=LAYER_EPS, field="layer_norm_eps", width=width),
        "attention.head_count_kv": count(config, attends, "kv_n_heads"),
    }
    clip = attends["clip_qkv"]
    if clip is not None and config.checked_number("clip_qkv", clip) <= 0:
        raise config.error(f"clip_qkv: wanted null or a number above 0; got {clip}")
    used, of = count(config, ffn, "moe_top_k"), count(config, ffn, "moe_num_experts")
    base = attends.get("rope_theta")
    own = 10000.0 if base is None else config.checked_number("rope_theta", base)
    rope = rope_keys(config, metadata, own)
    if base is not None and rope["rope.freq_base"] != own:  # the class uses that of rope_parameters alone
        raise config.error(f"rope_theta: wanted one; got {own} in attn_config, {rope['rope.freq_base']}")
    return {
        **metadata,
        **rope,
        "attention.clamp_kqv": 0.0 if clip is None else float(clip),
        "expert_count": of,
        "expert_used_count": used,
        "expert_feed_forward_length": width,
    }


def stacked(transposed: bool) -> Change:
    """Rows [E * F, D] as [E, F, D], or transposed as [E, D, F]."""

    def change(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
        fields, width = experts(config), config.size("embedding_length")
        shape = (count(config, fields, "moe_num_experts"), count(config, fields, "ffn_hidden_size"), width)
        if tensor.shape != (shape[0] * shape[1], width):
            wanted = [shape[0] * shape[1], width]
            raise config.error(f"{name}: wanted {wanted}; got {list(tensor.shape)}")
        if not transposed:
            return calculated(tensor, name, lambda values: values, shape)
        swapped = (shape[0], width, shape[1])
        return calculated(
            tensor, name, lambda values: np.ascontiguousarray(values.reshape(shape).swapaxes(1, 2)), swapped
        )

    return change


FAMILY = Family(
    model_types=("dbrx",),
    architecture="dbrx",
    keys=keys,
    names={
        "wte": "token_embd",
        "norm_f": "output_norm",
        "lm_head": "output",
        "blocks.{}.norm_attn_norm.norm_1": "blk.{}.attn_norm",
        "blocks.{}.norm_attn_norm.attn.Wqkv": "blk.{}.attn_qkv",
        "blocks.{}.norm_attn_norm.attn.out_proj": "blk.{}.attn_output",
        "blocks.{}.norm_attn_norm.norm_2": "blk.{}.attn_output_norm",
        "blocks.{}.ffn.router.layer": To("blk.{}.ffn_gate_inp", as_float32),
        "blocks.{}.ffn.experts.mlp.w1": To("blk.{}.ffn_gate_exps.weight", stacked(transposed=False)),
        "blocks.{}.ffn.experts.mlp.v1": To("blk.{}.ffn_up_exps.weight", stacked(transposed=False)),
        "blocks.{}.ffn.experts.mlp.w2": To("blk.{}.ffn_down_exps.weight", stacked(transposed=True)),
    },
    defaults={"layer_norm_eps": 1e-5},
    ignored=("resid_pdrop", "emb_pdrop"),
)
