"""DeepSeek-V2 and V3 (2024, arXiv:2405.04434, arXiv:2412.19437): multi-head latent attention, shared experts.

T tokens, D model width, N heads, R width of the latent keys and values, P width of what rotates, I width of a
query's other part, V width of a head's values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Any, Self

from graphml.engine.architecture import Keys, Layer, SampleModel
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml_models import _config, _routing, llama
from graphml_models._rope import Rope
from graphml_models._routing import Routing, shared_and_chosen
from graphml_models._samples import DENSE_FIRST, Shapes, shared_expert, transformer


@dataclass(frozen=True)
class Config(_routing.Config):
    """As of every decoder; n_latent: R."""

    n_latent: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        shared = _config.shared(keys)
        width = keys.integer("attention.key_length_mla", shared["head_dim"])
        shared["rope"], magnitude = _yarn(keys, shared["rope"])
        shared["scale"] = magnitude**2 * width**-0.5
        return cls(**shared, routing=Routing.read(keys), n_latent=keys.integer("attention.kv_lora_rank"))


def _yarn(keys: Keys, rope: Rope) -> tuple[Rope, float]:
    """The rope and what queries and keys are multiplied with each, which YaRN's rope would do for P alone."""
    if not rope.scaling.get("ext_factor"):
        return rope, 1.0
    stretch = -log(rope.scaling.get("freq_scale", 1.0))
    # files hold a tenth of the paper's `mscale_all_dim`
    all_dims = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    factor = rope.scaling["attn_factor"]
    if all_dims == 0.0:
        return rope, factor * (1.0 + 0.1 * stretch)
    unscaled = {**rope.scaling, "attn_factor": factor / (1.0 + 0.1 * stretch)}
    return replace(rope, scaling=unscaled), factor * (1.0 + all_dims * stretch)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention before its output projection, [T, N * V]: all heads read one latent of each token.

    The matrices that would make keys and values of it are applied to queries and outputs.
    """
    q_TNH = g.heads(queries(g, config, layer, x_TD), config.n_head)
    n_rot = config.rope.n_rot
    width = fixed(q_TNH.shape[2])
    q_TNI, q_TNP = g.columns(q_TNH, 0, width - n_rot), g.columns(q_TNH, width - n_rot, width)
    q_TNR = g.per_head(layer["attn_k_b"], q_TNI, "q_latent")

    kv_TE = layer.linear(x_TD, "attn_kv_a_mqa", "kv")
    kv_TR = g.columns(kv_TE, 0, config.n_latent)
    kv_TR = g.rms_norm(kv_TR, layer["attn_kv_a_norm"], config.norm_eps, "kv_norm")
    k_T1P = g.heads(g.columns(kv_TE, config.n_latent, config.n_latent + n_rot), 1)
    q_TNP, k_T1P = g.rope(q_TNP, table, "norm", "q_rope"), g.rope(k_T1P, table, "norm", "k_rope")

    q_TNE, k_T1E = g.concat(q_TNR, q_TNP), g.concat(g.heads(kv_TR, 1), k_T1P)
    y_TNE = g.heads(g.attend(q_TNE, k_T1E, None, layer.index, config.scale), config.n_head)
    return g.flatten(g.per_head(layer["attn_v_b"], g.columns(y_TNE, 0, config.n_latent), "v"))


def queries(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """All heads' queries, by way of a narrow value in the larger models."""
    if layer.get("attn_q"):
        return layer.linear(x_TD, "attn_q", "q")
    a_T = g.rms_norm(
        layer.linear(x_TD, "attn_q_a", "q_a"), layer["attn_q_a_norm"], config.norm_eps, "q_a_norm"
    )
    return layer.linear(a_T, "attn_q_b", "q")


build = partial(llama.build, attention=attention, feed_forward=shared_and_chosen)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: with all that V3 has, and with V2 Lite's plain queries and YaRN."""
    keys: dict[str, Any] = {  # R 24, P 8, I 12, V 16
        "attention.kv_lora_rank": 24, "attention.key_length": 32, "attention.key_length_mla": 20,
        "attention.head_count_kv": 1, "rope.dimension_count": 8,
    }  # fmt: skip
    layer: Shapes = {
        **shared_expert(), "attn_kv_a_mqa.weight": (32, 64), "attn_kv_a_norm.weight": (24,),
        "attn_k_b.weight": (4, 24, 12), "attn_v_b.weight": (4, 16, 24),
    }  # fmt: skip
    narrow = {"attn_q_a.weight": (40, 64), "attn_q_a_norm.weight": (40,), "attn_q_b.weight": (80, 40)}
    v3 = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_log_multiplier": 0.07}
    left_out = (*DENSE_FIRST["without"], "attn_k.weight", "attn_v.weight")
    model = partial(transformer, name, n_expert=5, top=DENSE_FIRST["top"])
    return [
        model("v3", layer={**layer, **narrow, "exp_probs_b.bias": (5,)}, metadata=keys | v3,
             without=(*left_out, "attn_q.weight")),
        model("v2", layer={**layer, "attn_q.weight": (80, 64)}, metadata=keys | yarn, without=left_out),
    ]  # fmt: skip
