"""DeepSeek-V2 and V3 (2024, arXiv:2405.04434, arXiv:2412.19437): multi-head latent attention, shared experts.

Letters as in `_latent`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _ahead, _config, _routing, llama
from graphml_models._latent import folded, latent, queries, unfolded
from graphml_models._rope import Rope
from graphml_models._routing import Routing, shared_and_chosen
from graphml_models._samples import DENSE_FIRST, Metadata, Shapes, shared_expert, transformer

TEMPERATURE, STEP = "attention.temperature_scale", "attention.temperature_length"


@dataclass(frozen=True)
class Config(_routing.Config):
    """As of every decoder with experts; the scale is that of the heads whose place the latent takes.

    temperature: by how much queries are scaled (0: not), temperature_step: after how many tokens each time.
    """

    temperature: float
    temperature_step: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        width = keys.integer("attention.key_length_mla", known.head_dim)
        rope, magnitude = _yarn(keys, known.rope)
        known = replace(known, rope=rope, scale=magnitude**2 * width**-0.5)
        temperature, step = keys.number(TEMPERATURE, 0.0), keys.integer(STEP, 0)
        if temperature and step < 1:
            raise keys.unsupported(STEP, "at least 1")
        return cls(**vars(known), routing=Routing.read(keys), temperature=temperature, temperature_step=step)


def _yarn(keys: Keys, rope: Rope) -> tuple[Rope, float]:
    """The rope and what queries and keys are multiplied with each, which YaRN's rope would do for P alone."""
    if not rope.ext_factor:
        return rope, 1.0
    stretch = -log(rope.freq_scale)
    # files hold a tenth of the paper's `mscale_all_dim`
    all_dims = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    if all_dims == 0.0:
        return rope, rope.attn_factor * (1.0 + 0.1 * stretch)
    unscaled = replace(rope, attn_factor=rope.attn_factor / (1.0 + 0.1 * stretch))
    return unscaled, rope.attn_factor * (1.0 + all_dims * stretch)


def attention(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention before its output projection, [T, N * V]."""
    factor = g.position_scale(config.temperature, config.temperature_step) if config.temperature else None
    q_TNH = queries(g, config, layer, x_TD)
    if factor is not None:
        q_TNH = g.mul(q_TNH, factor, "q_scaled")
    parts = latent(g, config, layer, q_TNH, x_TD).rotated(g, table)
    if layer.get("attn_kv_b"):  # of an older file
        return unfolded(g, config, layer, parts)
    return folded(g, layer, parts, config.scale)


build = partial(llama.build, attention=attention, feed_forward=shared_and_chosen)
ahead = partial(_ahead.build, attention=attention, feed_forward=shared_and_chosen)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: with all that V3 has, and with V2 Lite's plain queries and YaRN."""
    keys: Metadata = {  # R 24, P 8, I 12, V 16
        "attention.key_length": 32, "attention.key_length_mla": 20,
        "attention.head_count_kv": 1, "rope.dimension_count": 8,
    }  # fmt: skip
    layer: Shapes = {
        **shared_expert(), "attn_kv_a_mqa.weight": (32, 64), "attn_kv_a_norm.weight": (24,),
        "attn_k_b.weight": (4, 24, 12), "attn_v_b.weight": (4, 16, 24),
    }  # fmt: skip
    narrow = {"attn_q_a.weight": (40, 64), "attn_q_a_norm.weight": (40,), "attn_q_b.weight": (80, 40)}
    v3: Metadata = {
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        TEMPERATURE: 0.1,
        STEP: 16,
    }
    yarn: Metadata = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.yarn_log_multiplier": 0.07,
    }
    left_out = (*DENSE_FIRST["without"], "attn_k.weight", "attn_v.weight")
    model = partial(transformer, name, n_expert=5, top=DENSE_FIRST["top"])
    large = model("v3", layer={**layer, **narrow, "exp_probs_b.bias": (5,)}, metadata=keys | v3,
                  without=(*left_out, "attn_q.weight"))  # fmt: skip
    return [
        large,
        _ahead.sample(name, large),
        model("v2", layer={**layer, "attn_q.weight": (80, 64)}, metadata=keys | yarn, without=left_out),
    ]  # fmt: skip
