"""GLM-5.3 Flash (Z.ai 2026): Kimi's delta attention and latent attention by turns, between mixed residuals.

Streams of residuals are mixed before and behind each block, by weights made of all of them (manifold-
constrained hyper-connections: Xie et al. 2025, arXiv:2512.24880). Latent attention knows no positions. It
would choose among pools of more than `attention.indexer.top_k` tokens (`indexer*`, unused here): the context
is no longer than that, and all of it is seen. T tokens, D model width, S
streams, N heads, V width of a head's values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _kda, _routing
from graphml_models._experts import LIMITS, clamped_swiglu, read_limits
from graphml_models._hybrid import read_heads
from graphml_models._kda import Kda, delta_attention
from graphml_models._latent import queries
from graphml_models._routing import SIGMOID, Routing, shared_and_chosen
from graphml_models._samples import DENSE_FIRST, SPLIT_QKV, Metadata, Shapes, shared_expert, transformer

HYPER, INDEXER, SHARED = "hyper_connection", "attention.indexer", "swiglu_clamp_shexp"


@dataclass(frozen=True)
class Config(_routing.Config):
    """And which layers have latent attention, the others' delta nets, and streams of residuals.

    n_balance: how often the columns of the weights that mix them are brought to a sum of 1; hyper_eps: there;
    limits, shared_limits: see `clamped_swiglu`; of the chosen experts, and of what all tokens go through.
    """

    attends: tuple[bool, ...]
    net: Kda
    limits: tuple[float, ...]
    shared_limits: tuple[float, ...]
    n_stream: int
    n_balance: int
    hyper_eps: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        heads, attends = read_heads(keys)
        known = _config.read(keys, heads=heads)
        known = replace(known, scale=keys.integer("attention.key_length_mla") ** -0.5)
        known = replace(known, n_ctx=min(known.n_ctx, keys.integer(f"{INDEXER}.top_k")))
        if not keys.boolean(f"{INDEXER}.kpool_select_tail", True):
            raise keys.unsupported(f"{INDEXER}.kpool_select_tail", "that the last tokens are seen")
        if known.rope.n_rot:
            raise keys.unsupported("rope.dimension_count", "0: no positions")
        hyper = keys.integer(f"{HYPER}.count"), keys.integer(f"{HYPER}.sinkhorn_iterations")
        if not (1 <= hyper[0] <= 64 and 1 <= hyper[1] <= 64):
            raise keys.unsupported(f"{HYPER}.count", "1 to 64 streams, balanced 1 to 64 times")
        return cls(
            **vars(known),
            routing=Routing.read(keys, SIGMOID),
            attends=attends,
            net=Kda.read(keys, known, unit_eps=1e-6),
            limits=read_limits(keys, known.n_layer),
            shared_limits=read_limits(keys, known.n_layer, SHARED if keys.has(SHARED) else LIMITS),
            n_stream=hyper[0],
            n_balance=hyper[1],
            hyper_eps=keys.number(f"{HYPER}.epsilon"),
        )


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    x_TSD = g.repeat(g.heads(g.embed(weights["token_embd"], g.tokens), 1), config.n_stream)
    for layer in weights.layers(config.n_layer):
        h_TD, mixed = gather(g, config, layer, x_TSD, "hc_attn")
        h_TD = g.rms_norm(h_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        if config.attends[layer.index]:
            h_TD = latent_attention(g, config, layer, h_TD)
        else:
            h_TD = delta_attention(g, config.net, layer, h_TD)
        x_TSD = spread(g, layer.linear(h_TD, "attn_output", "attn_out", scaled=False), x_TSD, mixed)
        h_TD, mixed = gather(g, config, layer, x_TSD, "hc_ffn")
        h_TD = g.rms_norm(h_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        h_TD = shared_and_chosen(
            *(g, config, layer, h_TD),
            product=clamped_swiglu(config.limits[layer.index]),
            shared=clamped_swiglu(config.shared_limits[layer.index]),
        )
        x_TSD = spread(g, h_TD, x_TSD, mixed)
    x_TD = g.scale(total(g, x_TSD), 1.0 / config.n_stream, name="mean")
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def total(g: Builder, x_TSD: Node, weights_TS: Node | None = None) -> Node:
    """The sum over the streams, [T, D], each times its weight."""
    if weights_TS is not None:
        x_TSD = g.mul(x_TSD, g.reshape(weights_TS, fixed(weights_TS.shape[1]), 1))
    return g.reshape(g.sum_rows(g.permute(x_TSD, 0, 2, 1)), fixed(x_TSD.shape[2]))


def gather(
    g: Builder, config: Config, layer: Layer, x_TSD: Node, name: str
) -> tuple[Node, tuple[Node, Node]]:
    """What a block reads of the streams, [T, D]; its own weight in each, [T, S], and theirs, [T, S, S].

    In theirs the streams that come in stand last; each row and column sums to about 1.
    """
    n, eps = config.n_stream, config.hyper_eps
    starts = (0, n, 2 * n, 2 * n + n * n)
    flat_TE = g.rms_norm(g.flatten(x_TSD), None, config.norm_eps, f"{name}_norm")
    mixes_TM = layer.linear(flat_TE, f"{name}_fn", f"{name}_mixes", scaled=False, rows=starts[3])
    factors, base_M = vector(layer, f"{name}_scale", 3), vector(layer, f"{name}_base", starts[3])

    def part(i: int) -> Node:
        own = g.mul(g.columns(mixes_TM, starts[i], starts[i + 1]), g.columns(factors, i, i + 1))
        return g.add(own, g.columns(base_M, starts[i], starts[i + 1]))

    read_TS = g.scale(g.sigmoid(part(0)), 1.0, eps, name=f"{name}_read")
    write_TS = g.scale(g.sigmoid(part(1)), 2.0, name=f"{name}_write")
    mix_TSS = g.scale(g.softmax(g.reshape(part(2), n, n)), 1.0, eps)
    for _ in range(2 * config.n_balance - 1):  # columns, rows, ..., columns
        mix_TSS = g.permute(mix_TSS, 0, 2, 1)
        mix_TSS = g.div(mix_TSS, g.scale(g.sum_rows(mix_TSS), 1.0, eps))
    return total(g, x_TSD, read_TS), (write_TS, mix_TSS)


def vector(layer: Layer, name: str, size: int) -> Node:
    """The tensor, if it has so many elements."""
    if layer[name].shape != (size,):
        raise ArchitectureError(f"tensor {layer[name].name}: wanted {size} elements; got {layer[name].type}")
    return layer[name]


def spread(g: Builder, y_TD: Node, x_TSD: Node, mixed: tuple[Node, Node]) -> Node:
    """The streams behind a block, [T, S, D]: the old ones mixed, and what the block gives."""
    write_TS, mix_TSS = mixed
    n, width = fixed(write_TS.shape[1]), fixed(x_TSD.shape[2])
    mix_TE = g.flatten(mix_TSS)
    streams = [total(g, x_TSD, g.columns(mix_TE, i * n, (i + 1) * n)) for i in range(n)]
    old_TE = streams[0]
    for stream_TD in streams[1:]:
        old_TE = g.concat(old_TE, stream_TD)
    new_TSD = g.mul(g.repeat(g.heads(y_TD, 1), n), g.reshape(write_TS, n, 1))
    return g.add(g.reshape(old_TE, n, width), new_TSD, "streams")


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
        "rope.dimension_count": 0, "kda.head_dim": 16, "ssm.conv_kernel": 4, f"{INDEXER}.top_k": 96,
        f"{HYPER}.sinkhorn_iterations": 2, f"{HYPER}.epsilon": 1e-6, "expert_weights_norm": True,
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
        hyper: Shapes = {
            "_fn.weight": ((2 + n) * n, n * 64),
            "_base.weight": ((2 + n) * n,),
            "_scale.weight": (3,),
        }
        layer = {f"hc_{block}{part}": shape for block in ("attn", "ffn") for part, shape in hyper.items()}
        layer |= {**shared_expert(), "exp_probs_b.bias": (5,)}
        said = {**keys, f"{HYPER}.count": n, **more}
        return transformer(
            name, title, n_head_kv=4, n_expert=5, layer=layer, metadata=said, top=top, without=gone
        )

    return [model("bounded", 2, **{_kda.BOUND: -5.0}), model("free", 3, **{LIMITS: 0.5, SHARED: 0.3})]
