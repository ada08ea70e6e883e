"""Ling 3.0 (Ling Team 2026, "Ling 3.0"): Kimi delta attention, and gated latent attention with positions.

T tokens, D model width, N heads, E all heads' width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _kda, llama
from graphml_models._experts import swiglu
from graphml_models._ffn import Product, gated_ffn
from graphml_models._hybrid import hybrid
from graphml_models._kda import BOUND, KEYS, LATENT, TENSORS, delta_attention, of_each_head
from graphml_models._latent import folded, latent, queries
from graphml_models._rope import read_sections
from graphml_models._routing import choose
from graphml_models._samples import DENSE_FIRST, shared_expert

SAFE = "kda.safe_gate"


@dataclass(frozen=True)
class Config(_kda.Config):
    """And how pairs rotate, and limits of the experts' gates in each layer: of chosen and of shared ones."""

    mode: str
    limits: tuple[float, ...]
    shared_limits: tuple[float, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _kda.Config.read(keys)
        if not keys.boolean(SAFE, True):
            raise keys.unsupported(SAFE, "true, a decay with a lower bound")
        if known.kda.bound == float("-inf"):
            raise keys.unsupported(BOUND, "a number below 0")
        known = replace(known, kda=replace(known.kda, rising=True))
        limits, shared_limits = (
            keys.numbers(f"swiglu_clamp_{what}", keys.integer("block_count"), 0.0)
            for what in ("exp", "shexp")
        )
        mode = "neox" if read_sections(keys) else "norm"
        return cls(**vars(known), mode=mode, limits=limits, shared_limits=shared_limits)


def mixer(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Latent attention, each head times a gate, or a delta net, before the output projection, [T, E]."""
    if not config.attends[layer.index]:
        return delta_attention(g, config.kda, layer, x_TD)
    parts = latent(g, config, layer, queries(g, config, layer, x_TD), x_TD).rotated(g, table, config.mode)
    y_TNV = g.heads(folded(g, layer, parts, config.scale), config.n_head)
    gate_TN = g.sigmoid(of_each_head(g, layer, "attn_gate", x_TD, config.n_head))
    return g.flatten(g.mul(y_TNV, g.reshape(gate_TN, config.n_head, 1), "gated"))


def limited_swiglu(limit: float) -> Product:
    """SiLU(gate), at most `limit`, times up, within it on both sides; 0: no limit."""
    if limit <= 1e-6:
        return swiglu
    return lambda g, gate, up: g.mul(g.clamp(g.silu(gate), float("-inf"), limit), g.clamp(up, -limit, limit))


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Plain in the first layers, in others experts chosen and shared."""
    product, shared = (
        limited_swiglu(limits[layer.index]) for limits in (config.limits, config.shared_limits)
    )
    if layer.get("ffn_gate_inp") is None:
        return gated_ffn(g, layer, x_TD, product=shared)
    chosen = choose(g, config.routing, layer, x_TD)
    chosen_TD = chosen.combine(chosen.gated(x_TD, product))
    return g.add(chosen_TD, gated_ffn(g, layer, x_TD, suffix="_shexp", product=shared), "experts")


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]; biases and scales of attention are left out, as in llama.cpp."""
    plain = weights.without("*.attn_*.bias").without("*.attn_*.scale")
    return llama.build(g, config, plain, attention=mixer, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests, with limits that its experts reach."""
    layer = {**shared_expert(), "exp_probs_b.bias": (5,), "attn_gate.weight": (4, 64)}
    gone = (*DENSE_FIRST["without"], "blk.1.attn_k.weight", "blk.1.attn_v.weight", "blk.0.attn_gate.weight")
    keys = {**KEYS, BOUND: -5.0, "swiglu_clamp_exp": 0.5, "swiglu_clamp_shexp": 0.25}
    return [
        hybrid(
            name,
            TENSORS,
            LATENT,
            n_expert=5,
            layer=layer,
            metadata=keys,
            top=DENSE_FIRST["top"],
            without=gone,
        )
    ]
