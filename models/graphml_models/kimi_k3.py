"""Kimi K3 (Moonshot AI 2026, "Kimi K3"): kimi-linear with gates, narrower experts, residual attention.

The stream of the residual is kept every so many layers and begins anew; what a block reads is the sum of what
was kept and of the stream, weighted by scores. T tokens, D model width, C kept values and the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _kda, kimi_linear
from graphml_models._ffn import Product, gated_ffn
from graphml_models._hybrid import hybrid
from graphml_models._kda import BOUND, KEYS, LATENT, TENSORS
from graphml_models._routing import choose
from graphml_models._samples import DENSE_FIRST, shared_expert

BLOCK, BETA, LINEAR_BETA = "attn_res.block_size", "activation.situ_beta", "activation.situ_linear_beta"


@dataclass(frozen=True)
class Config(_kda.Config):
    """And after how many layers the stream is kept (0: never); limits of gates and of what they gate."""

    block: int
    gate_limit: float
    up_limit: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        block, limit = keys.integer(BLOCK), keys.number(BETA)
        if block < 0:
            raise keys.unsupported(BLOCK, "0 or more layers")
        if limit <= 0.0:
            raise keys.unsupported(BETA, "a number above 0")
        known = _kda.Config.read(keys)
        return cls(**vars(known), block=block, gate_limit=limit, up_limit=keys.number(LINEAR_BETA))


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]; biases and scales of attention are left out, as in llama.cpp."""

    def mixed(tensors: Tensors, score: str) -> Node:
        if kept is None:
            return x_TD
        return weighted(g, g.concat(kept, x_TD), tensors[score], config.norm_eps)

    plain = weights.without("*.attn_*.bias").without("*.attn_*.scale")
    x_TD, kept = g.embed(plain["token_embd"], g.tokens), None
    for layer in plain.layers(config.n_layer):
        h_TD = mixed(layer, "attn_res_score")
        keeps = config.block > 0 and layer.index % config.block == 0
        if keeps:
            kept = x_TD if kept is None else g.concat(kept, x_TD)
        h_TD = attention(g, config, layer, g.rms_norm(h_TD, layer["attn_norm"], config.norm_eps, "attn_norm"))
        x_TD = h_TD if keeps else g.add(x_TD, h_TD, "attn_residual")
        h_TD = g.rms_norm(mixed(layer, "ffn_res_score"), layer["ffn_norm"], config.norm_eps, "ffn_norm")
        x_TD = g.add(x_TD, feed_forward(g, config, layer, h_TD), "ffn_residual")
    x_TD = mixed(plain, "output_res_score")
    return plain.logits(g.rms_norm(x_TD, plain["output_norm"], config.norm_eps, "output_norm"))


def weighted(g: Builder, values_TE: Node, score_D: Node, eps: float) -> Node:
    """The sum of the C values [T, C * D], weighted by the softmax of their scores, [T, D]."""
    width = fixed(score_D.shape[0])
    count = fixed(values_TE.shape[1]) // width
    each_TCD = g.heads(values_TE, count)
    scores_TC1 = g.sum_rows(g.rms_norm(each_TCD, score_D, eps), "scores")
    weights_TC = g.softmax(g.reshape(scores_TC1, count))
    weighted_TCD = g.mul(each_TCD, g.reshape(weights_TC, count, 1))
    return g.reshape(g.sum_rows(g.permute(weighted_TCD, 0, 2, 1)), width, name="mixed")


def attention(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Gated latent attention or a delta net, behind its output projection, [T, D]."""
    h_TE = kimi_linear.mixer(g, config, layer, None, x_TD)
    if layer.get("attn_gate"):
        h_TE = g.mul(h_TE, g.sigmoid(layer.linear(x_TD, "attn_gate")), "gated")
    return layer.linear(h_TE, "attn_output", "attn_out")


def situ(config: Config) -> Product:
    """Limit * tanh(gate / limit) * sigmoid(gate) times up, which may be bent below a limit likewise."""

    def product(g: Builder, gate: Node, up: Node) -> Node:
        if config.up_limit > 0.0:
            up = g.softcap(up, config.up_limit)
        return g.mul(g.mul(g.softcap(gate, config.gate_limit), g.sigmoid(gate)), up)

    return product


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Plain in the first layers; in others experts that work on a narrower value, beside shared ones."""
    product = situ(config)
    if layer.get("ffn_gate_inp") is None:
        return gated_ffn(g, layer, x_TD, product=product)
    chosen = choose(g, config.routing, layer, x_TD)
    narrows = layer["ffn_gate_exps"].shape[-1] != x_TD.shape[1]
    narrow = layer.linear(x_TD, "ffn_routed_down", "narrow") if narrows else x_TD
    y = chosen.combine(chosen.gated(narrow, product))
    if layer.get("ffn_routed_norm"):
        y = g.rms_norm(y, layer["ffn_routed_norm"], config.norm_eps, "routed_norm")
    if narrows:
        y = layer.linear(y, "ffn_routed_up", "routed")
    if layer.get("ffn_up_shexp", "ffn_gate_shexp", "ffn_down_shexp") is None:
        return y
    return g.add(y, gated_ffn(g, layer, x_TD, suffix="_shexp", product=product), "experts")


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests whose stream is kept before each layer."""
    memory = {
        **{tensor: shape for tensor, shape in TENSORS.items() if tensor != "ssm_g_a.weight"},
        "ssm_g.weight": (64, 64), "ssm_f_a.weight": (16, 64), "ssm_f_b.weight": (64, 16),
    }  # fmt: skip
    layer = {
        **shared_expert(), "exp_probs_b.bias": (5,), "attn_gate.weight": (64, 64),
        "attn_res_score.weight": (64,), "ffn_res_score.weight": (64,), "ffn_routed_down.weight": (32, 64),
        "ffn_routed_up.weight": (64, 32), "ffn_routed_norm.weight": (32,),
        "ffn_gate_exps.weight": (5, 96, 32), "ffn_up_exps.weight": (5, 96, 32),
        "ffn_down_exps.weight": (5, 32, 96),
    }  # fmt: skip
    gone = (*DENSE_FIRST["without"], "blk.1.attn_k.weight", "blk.1.attn_v.weight", "blk.0.attn_gate.weight",
            "blk.0.attn_res_score.weight",
            *(f"blk.0.ffn_routed_{part}.weight" for part in ("down", "up", "norm")))  # fmt: skip
    keys = {**KEYS, BOUND: -5.0, BLOCK: 1, BETA: 4.0, LINEAR_BETA: 25.0, "expert_weights_norm": True}
    top = {**DENSE_FIRST["top"], "output_res_score.weight": (64,)}
    return [hybrid(name, memory, LATENT, n_expert=5, layer=layer, metadata=keys, top=top, without=gone)]
