"""Nemotron-H (NVIDIA 2025, arXiv:2504.03624): each layer is Mamba 2, or attention, or a feed-forward.

Feed-forwards have a squared ReLU and no gate; those with experts may go through a narrower value. T tokens, O
output rows, D model width, I inner width, F hidden width, U experts used per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _ssm_samples as samples
from graphml_models._attention import project
from graphml_models._config import LAYER_EPS, RMS_EPS
from graphml_models._ffn import plain_ffn, relu_squared
from graphml_models._routing import SIGMOID, Routing, choose
from graphml_models._samples import N_FF, Metadata, transformer
from graphml_models._ssm import Hybrid, mamba2, mixed_out, read_hybrid


@dataclass(frozen=True)
class Config(Hybrid):
    """As of every hybrid; n_ff: of each layer, 0 where it is none; routing: of each, if there are experts."""

    n_ff: tuple[int, ...]
    routing: tuple[Routing, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        used = keys.integers("expert_used_count", keys.integer("block_count"), 0)
        known = read_hybrid(keys, RMS_EPS if keys.has(RMS_EPS) else LAYER_EPS, n_used=max(used, default=0))
        n_ff = keys.integers("feed_forward_length", known.n_layer)
        by_layer = used[: known.n_layer] if keys.integer("expert_count", 0) else ()
        routing = tuple(Routing.read(keys, SIGMOID, count) for count in by_layer)
        return cls(**vars(known), n_ff=n_ff, routing=routing)


def mixer(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Attention without positions or Mamba 2, before the output projection."""
    attention = config.of(layer)
    if attention is None:
        return mamba2(g, config.ssm, layer, x_TD, config.norm_eps)
    return g.attend(*project(g, attention, layer, x_TD), layer.index, config.scale)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Dense, or experts beside one that all tokens share."""
    if not config.routing or layer.get("ffn_gate_inp") is None:
        return plain_ffn(g, layer, x_TD, relu_squared, scaled=True)
    chosen, narrow = choose(g, config.routing[layer.index], layer, x_TD), x_TD
    if layer.get("ffn_latent_down"):
        narrow = layer.linear(x_TD, "ffn_latent_down", "latent")
    h_TUF = relu_squared(g, chosen.linear(narrow, "ffn_up_exps"))
    y = chosen.combine(chosen.linear(h_TUF, "ffn_down_exps"))
    if layer.get("ffn_latent_up"):
        y = layer.linear(y, "ffn_latent_up", "experts_out")
    return g.add(y, plain_ffn(g, layer, x_TD, relu_squared, "_shexp", scaled=True), "experts")


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    x_TD = g.embed(weights["token_embd"], g.tokens)
    for layer in weights.layers(config.n_layer):
        h = g.rms_norm(x_TD, layer["attn_norm"], config.norm_eps, "norm")
        if config.n_ff[layer.index]:
            h = feed_forward(g, config, layer, h)
        else:
            h = mixed_out(layer, mixer(g, config, layer, h))
        x_TD = g.add(x_TD, h, "residual")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: dense, and with experts."""
    heads = {"attention.head_count": [4, 0, 4], "attention.head_count_kv": [2, 0, 0]}
    keys: Metadata = {**samples.sizes(n_group=2), **heads, "attention.key_length": 16}
    keys["feed_forward_length"] = [0, 0, N_FF]
    no_ffn = tuple(f"blk.{i}.{part}" for i in (0, 1) for part in samples.FFN)
    no_attention = tuple(f"blk.{i}.{part}" for i in (1, 2) for part in samples.ATTENTION)
    top = {f"blk.1.{part}": shape for part, shape in samples.mamba2().items()}
    shared = {"blk.2.ffn_up_shexp.weight": (48, 64), "blk.2.ffn_down_shexp.weight": (64, 48),
              "blk.2.exp_probs_b.bias": (5,), "blk.2.ffn_gate_inp.weight": (5, 64),
              "blk.2.ffn_latent_down.weight": (32, 64), "blk.2.ffn_latent_up.weight": (64, 32),
              "blk.2.ffn_up_exps.weight": (5, 96, 32), "blk.2.ffn_down_exps.weight": (5, 32, 96)}  # fmt: skip
    without = (*no_ffn, *no_attention, "ffn_norm.weight", "ffn_gate.weight")
    routed = {**keys, "expert_count": 5, "expert_used_count": 2, "expert_weights_scale": 2.5}
    dense = ("blk.2.ffn_up.weight", "blk.2.ffn_down.weight")
    return [
        transformer(name, metadata=keys, n_layer=3, top=top, without=without),
        transformer(
            name, "experts", metadata=routed, n_layer=3, top={**top, **shared}, without=without + dense
        ),
    ]
