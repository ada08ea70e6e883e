"""Kimi Linear (Kimi Team 2025, arXiv:2510.26692): Kimi delta attention, latent attention without positions.

T tokens, D model width, E all heads' width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _kda, llama
from graphml_models._hybrid import hybrid
from graphml_models._kda import KEYS, LATENT, TENSORS, delta_attention
from graphml_models._latent import folded, latent, queries, unfolded
from graphml_models._routing import shared_and_chosen
from graphml_models._samples import DENSE_FIRST, shared_expert


class Config(_kda.Config):
    """As of the family; weights of a token's experts sum to 1, which files do not say."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _kda.Config.read(keys)
        return cls(**vars(replace(known, routing=replace(known.routing, normalise=True))))


def mixer(g: Builder, config: _kda.Config, layer: Layer, table: Node | None, x_TD: Node) -> Node:
    """Latent attention or a delta net, before the output projection."""
    if not config.attends[layer.index]:
        return delta_attention(g, config.kda, layer, x_TD)
    of_latent = replace(config, norm_eps=config.latent_eps)
    parts = latent(g, of_latent, layer, queries(g, of_latent, layer, x_TD), x_TD)
    if layer.get("attn_kv_b"):  # of an older file
        return unfolded(g, config, layer, parts)
    return folded(g, layer, parts, config.scale)


def out(layer: Layer, h_TE: Node) -> Node:
    """The projection behind a layer's attention or delta net; beside the latter llama.cpp reads no scale."""
    return layer.linear(h_TE, "attn_output", "attn_out", scaled=layer.get("ssm_norm") is None)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]; biases and scales of queries, keys and values are left out, as in llama.cpp."""
    plain = weights.without("*.attn_[qkv].bias").without("*.attn_[qkv].scale")
    return llama.build(g, config, plain, attention=mixer, project=out, feed_forward=shared_and_chosen)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    memory = {**TENSORS, "ssm_f_b.weight": (64, 64), "ssm_g_b.weight": (64, 64)}
    layer = {**shared_expert(), "exp_probs_b.bias": (5,)}
    gone = (*DENSE_FIRST["without"], "blk.1.attn_k.weight", "blk.1.attn_v.weight")
    return [
        hybrid(
            name, memory, LATENT, n_expert=5, layer=layer, metadata=KEYS, top=DENSE_FIRST["top"], without=gone
        )
    ]
