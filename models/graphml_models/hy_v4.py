"""Hunyuan V4 (Tencent 2026): DeepSeek's latent and sparse attention with sinks and a gate, several residuals.

Each block reads a weighted sum of the residual streams and adds what it gives to all of them, weighted too
(after Xie et al. 2025, arXiv:2512.24880, without the mixing matrix). T tokens, D model width, S streams, N
heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, SampleModel, Tensors
from graphml_models import _config, _routing
from graphml_models._attention import rotate_last
from graphml_models._experts import clamped_swiglu, read_limits
from graphml_models._index import INDEX, index, read_index, sampled
from graphml_models._latent import folded, latent, narrow_queries, queries
from graphml_models._routing import Routing, shared_and_chosen
from graphml_models._samples import DENSE_FIRST, Metadata, Shapes, shared_expert, transformer
from graphml_models._streams import HYPER


@dataclass(frozen=True)
class Config(_routing.Config):
    """And residual streams, and the index: its heads and how many positions a token sees, 0 if all.

    latent_eps: of the norms of the narrow values that queries, keys and values are made of; magnitude: the
    most that a block's output is multiplied with; hyper_eps: added to all weights of streams;
    limits: see `clamped_swiglu`; indexed: whether a layer has an index, or the choice of one before it.
    """

    latent_eps: float
    n_stream: int
    magnitude: float
    hyper_eps: float
    limits: tuple[float, ...]
    indexer_n_head: int
    indexer_top_k: int
    indexed: tuple[int, ...]

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        n_layer = known.n_layer
        known = replace(known, scale=keys.integer("attention.key_length_mla") ** -0.5)
        indexer_top_k = min(keys.integer(f"{INDEX}.top_k", 0), known.n_ctx)  # as many even where that is all
        indexer_n_head, indexed = 0, (0,) * n_layer
        if indexer_top_k:
            indexer_n_head, _ = read_index(keys, known.n_ctx)
            indexed = _config.by_layer(keys, f"{INDEX}.types", n_layer, 1)
            if not indexed[0]:
                raise keys.unsupported(f"{INDEX}.types", "an index in the first layer")
        return cls(
            **vars(known),
            routing=Routing.read(keys),
            latent_eps=keys.number("attention.latent_norm_rms_epsilon", known.norm_eps),
            n_stream=keys.integer(f"{HYPER}.count"),
            magnitude=keys.number(f"{HYPER}.magnitude"),
            hyper_eps=keys.number(f"{HYPER}.epsilon"),
            limits=read_limits(keys, n_layer),
            indexer_n_head=indexer_n_head,
            indexer_top_k=indexer_top_k,
            indexed=indexed,
        )


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    table, selected = config.rope.table(g, weights), None
    of_latent = replace(config, norm_eps=config.latent_eps)
    x_TD = g.embed(weights["token_embd"], g.tokens)
    x_TSD = g.repeat(g.reshape(x_TD, 1, config.n_embd), config.n_stream, "streams")
    for layer in weights.layers(config.n_layer):
        h_TD, factors_TS = reduced(g, config, layer, x_TSD, "hc_attn")
        h_TD = g.rms_norm(h_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        narrow = narrow_queries(g, of_latent, layer, h_TD)
        q_TNH = queries(g, config, layer, h_TD, narrow)
        parts = latent(g, of_latent, layer, q_TNH, h_TD).rotated(g, table)
        if config.indexed[layer.index]:
            heads, top_k = config.indexer_n_head, config.indexer_top_k
            rotate = partial(rotate_last, g, config, table)
            selected = index(g, layer, h_TD, narrow, heads, top_k, rotate, config.norm_eps)
        a_TD = folded(g, layer, parts, config.scale, sinks=layer["attn_sinks"], selected=selected)
        a_TD = g.mul(a_TD, g.sigmoid(layer.linear(h_TD, "attn_gate", scaled=False)), "attn_gated")
        x_TSD = added(g, x_TSD, layer.linear(a_TD, "attn_output", "attn_out", scaled=False), factors_TS)
        h_TD, factors_TS = reduced(g, config, layer, x_TSD, "hc_ffn")
        h_TD = g.rms_norm(h_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        product = clamped_swiglu(config.limits[layer.index])
        x_TSD = added(g, x_TSD, shared_and_chosen(g, config, layer, h_TD, product=product), factors_TS)
    x_TD, _ = reduced(g, config, weights, x_TSD, "output_hc")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def reduced(g: Builder, config: Config, weights: Tensors, x_TSD: Node, name: str) -> tuple[Node, Node]:
    """The weighted sum of the streams, [T, D], and the factors of what is added to each, [T, S].

    Both follow from all streams normed together; behind the last layer there are no factors.
    """
    count, width = config.n_stream, config.n_embd
    mixed = weights.linear(g.rms_norm(g.flatten(x_TSD), None, config.norm_eps), f"{name}_fn")
    kinds = fixed(mixed.shape[1]) // count
    scales = g.reshape(weights[f"{name}_scale"], kinds, 1, keep=0)
    mixed = g.reshape(g.mul(g.reshape(mixed, kinds, count), scales), kinds * count)
    gates = g.sigmoid(g.add(mixed, weights[f"{name}_base"]), f"{name}_gates")
    sums_TS = g.scale(g.columns(gates, 0, count), 1.0, config.hyper_eps)
    factors_TS = sums_TS
    if kinds > 1:
        factors_TS = g.scale(g.columns(gates, count, 2 * count), config.magnitude, config.hyper_eps)
    weighted_TSD = g.mul(x_TSD, g.reshape(sums_TS, count, 1))
    return g.reshape(g.sum_rows(g.permute(weighted_TSD, 0, 2, 1)), width), factors_TS


def added(g: Builder, x_TSD: Node, y_TD: Node, factors_TS: Node) -> Node:
    """The streams, each with y times its factor added."""
    count, width = fixed(x_TSD.shape[1]), fixed(y_TD.shape[1])
    y_TSD = g.mul(g.repeat(g.reshape(y_TD, 1, width), count), g.reshape(factors_TS, count, 1))
    return g.add(x_TSD, y_TSD, "residual")


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests: latent of 24, 8 dimensions rotate; two streams; two layers use an index."""
    keys: Metadata = {
        "attention.key_length": 32, "attention.key_length_mla": 20, "attention.head_count_kv": 1,
        "rope.dimension_count": 8, "expert_gating_func": 2, "expert_weights_norm": True,
        "swiglu_clamp_exp": 0.5, f"{HYPER}.count": 2, f"{HYPER}.magnitude": 2.0, f"{HYPER}.epsilon": 1e-6,
        f"{INDEX}.types": [1, 0],
    }  # fmt: skip
    layer: Shapes = {
        **shared_expert(), "exp_probs_b.bias": (5,), "attn_q_a.weight": (40, 64), "attn_sinks.weight": (4,),
        "attn_q_a_norm.weight": (40,), "attn_q_b.weight": (80, 40), "attn_kv_a_mqa.weight": (32, 64),
        "attn_kv_a_norm.weight": (24,), "attn_k_b.weight": (4, 24, 12), "attn_v_b.weight": (4, 16, 24),
        "attn_gate.weight": (64, 64),
    }  # fmt: skip
    top: Shapes = dict(DENSE_FIRST["top"])
    for part, kinds in (("blk.0.hc_attn", 2), ("blk.0.hc_ffn", 2), ("blk.1.hc_attn", 2), ("blk.1.hc_ffn", 2),
                        ("output_hc", 1)):  # fmt: skip
        top |= {f"{part}_fn.weight": (2 * kinds, 128), f"{part}_base.weight": (2 * kinds,),
                f"{part}_scale.weight": (kinds,)}  # fmt: skip
    index_keys, index_tensors = sampled(0)
    top |= index_tensors
    gone = (*DENSE_FIRST["without"], "attn_q.weight", ".attn_v.weight")
    gone += tuple(f"blk.{i}.attn_k.weight" for i in range(2))
    return [transformer(name, n_expert=5, layer=layer, metadata=keys | index_keys, top=top, without=gone)]
