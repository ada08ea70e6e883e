"""GLM-5.3 Flash (Z.ai 2026): Kimi's delta attention and latent attention by turns, between mixed residuals.

Streams of residuals are mixed as `_streams` says. Latent attention knows no positions. It would choose among
pools of more than `attention.indexer.top_k` tokens (`indexer*`, unused here): the context is no longer than
that, and all of it is seen. T tokens, D model width, S streams, N heads, V width of a head's values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _kda, _routing, _streams
from graphml_models._experts import LIMITS, SHARED_LIMITS, clamped_swiglu, read_limits, read_shared_limits
from graphml_models._hybrid import read_heads
from graphml_models._index import INDEX
from graphml_models._kda import Kda, delta_attention
from graphml_models._latent import queries
from graphml_models._routing import SIGMOID, Routing, shared_and_chosen
from graphml_models._samples import DENSE_FIRST, SPLIT_QKV, Metadata, Shapes, shared_expert, transformer
from graphml_models._streams import Streams, embedded, gather, spread, total


@dataclass(frozen=True)
class Config(_routing.Config):
    """And which layers have latent attention, the others' delta nets, and streams of residuals.

    limits, shared_limits: see `clamped_swiglu`; of the chosen experts, and of what all tokens go through.
    """

    attends: tuple[bool, ...]
    net: Kda
    limits: tuple[float, ...]
    shared_limits: tuple[float, ...]
    streams: Streams

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        heads, attends = read_heads(keys)
        known = _config.read(keys, heads=heads)
        known = replace(known, scale=keys.integer("attention.key_length_mla") ** -0.5)
        known = replace(known, n_ctx=min(known.n_ctx, keys.integer(f"{INDEX}.top_k")))
        if not keys.boolean(f"{INDEX}.kpool_select_tail", True):
            raise keys.unsupported(f"{INDEX}.kpool_select_tail", "that the last tokens are seen")
        if known.rope.n_rot:
            raise keys.unsupported("rope.dimension_count", "0: no positions")
        return cls(
            **vars(known),
            routing=Routing.read(keys, SIGMOID),
            attends=attends,
            net=Kda.read(keys, known, unit_eps=1e-6),
            limits=read_limits(keys, known.n_layer),
            shared_limits=read_shared_limits(keys, known.n_layer),
            streams=Streams.read(keys, known.norm_eps),
        )


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    x_TSD = embedded(g, config.streams, weights)
    for layer in weights.layers(config.n_layer):
        h_TD, mixed = gather(g, config.streams, layer, x_TSD, "hc_attn")
        h_TD = g.rms_norm(h_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        if config.attends[layer.index]:
            h_TD = latent_attention(g, config, layer, h_TD)
        else:
            h_TD = delta_attention(g, config.net, layer, h_TD)
        x_TSD = spread(g, layer.linear(h_TD, "attn_output", "attn_out", scaled=False), x_TSD, mixed)
        h_TD, mixed = gather(g, config.streams, layer, x_TSD, "hc_ffn")
        h_TD = g.rms_norm(h_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        h_TD = shared_and_chosen(
            *(g, config, layer, h_TD),
            product=clamped_swiglu(config.limits[layer.index]),
            shared=clamped_swiglu(config.shared_limits[layer.index]),
        )
        x_TSD = spread(g, h_TD, x_TSD, mixed)
    x_TD = g.scale(total(g, x_TSD), 1.0 / config.streams.n, name="mean")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def latent_attention(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Latent attention without positions, before its output projection, [T, N * V]."""
    q_TNI = queries(g, config, layer, x_TD)
    latent_TR = layer.linear(x_TD, "attn_kv_a_mqa", "kv")
    latent_TR = g.rms_norm(latent_TR, layer["attn_kv_a_norm"], config.norm_eps, "kv_norm")
    q_TNR = g.per_head(layer["attn_k_b"], q_TNI, "q_latent")
    y_TE = g.attend(q_TNR, g.heads(latent_TR, 1), None, layer.index, config.scale)
    return g.flatten(g.per_head(layer["attn_v_b"], g.heads(y_TE, config.n_head), "v"))


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests of a latent and a delta layer: decays of both kinds, two streams and three."""
    keys: Metadata = {
        "attention.head_count_kv": [1, 0], "attention.key_length": 24, "attention.key_length_mla": 20,
        "rope.dimension_count": 0, "kda.head_dim": 16, "ssm.conv_kernel": 4, f"{INDEX}.top_k": 96,
        "expert_weights_norm": True,
    }  # fmt: skip
    latent: Shapes = {
        "attn_q_a.weight": (40, 64), "attn_q_a_norm.weight": (40,), "attn_q_b.weight": (80, 40),
        "attn_kv_a_mqa.weight": (24, 64), "attn_kv_a_norm.weight": (24,), "attn_k_b.weight": (4, 24, 20),
        "attn_v_b.weight": (4, 16, 24),
    }  # fmt: skip
    memory = {**_kda.TENSORS, **{f"ssm_{part}_a.weight": (16, 64) for part in "fg"},
              **{f"ssm_{part}_b.weight": (64, 16) for part in "fg"}}  # fmt: skip
    top = {**DENSE_FIRST["top"], **{f"blk.0.{part}": shape for part, shape in latent.items()}}
    top |= {f"blk.1.{part}": shape for part, shape in memory.items()}
    gone = (*DENSE_FIRST["without"], *(f"blk.0.{part}" for part in SPLIT_QKV))

    def model(title: str, n: int, **more: float) -> SampleModel:
        hyper, layer = _streams.sampled(n)
        layer |= {**shared_expert(), "exp_probs_b.bias": (5,)}
        said = {**keys, **hyper, **more}
        return transformer(
            name, title, n_head_kv=4, n_expert=5, layer=layer, metadata=said, top=top, without=gone
        )

    return [model("bounded", 2, **{_kda.BOUND: -5.0}), model("free", 3, **{LIMITS: 0.5, SHARED_LIMITS: 0.3})]
