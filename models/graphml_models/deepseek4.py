"""DeepSeek-V4 (DeepSeek-AI 2026): a window and compressed groups of tokens, between mixed residuals.

The keys, which are the values too, have one head. Layers with a compression see groups of tokens as well,
where the groups overlap those that an index chooses (`graphml/ir/ops/compressed.py`). The first layers choose
experts by the token alone. T tokens, D model width, S streams, N heads, H their width, J heads of the index,
U experts used per token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from math import log
from typing import Self

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config, _routing, _streams
from graphml_models._attention import rotate_last
from graphml_models._experts import LIMITS, clamped_swiglu, read_limits, read_shared_limits
from graphml_models._index import INDEX, queries, read_index
from graphml_models._latent import narrow_queries
from graphml_models._rope import Rope
from graphml_models._routing import ROOT, Routing, shared_and_chosen
from graphml_models._samples import Metadata, Shapes, shared_expert, transformer
from graphml_models._streams import Streams, embedded, gather, spread, total, vector

RATIOS, PARTS = "attention.compress_ratios", "attention.output_group_count"
LONGEST = 1 << 16  # of a group, more than any model has


@dataclass(frozen=True)
class Config(_routing.Config):
    """And streams, windows, and compressions by layer: how many tokens a group has, 0 for none.

    far: the rope of layers with a compression; limits, shared_limits: see `clamped_swiglu`; indexer_top_k:
    how many groups a token sees, 0 if all; n_output_group: of heads, for the output; n_hash: layers that
    choose experts by the token.
    """

    streams: Streams
    window: int
    ratios: tuple[int, ...]
    far: Rope
    limits: tuple[float, ...]
    shared_limits: tuple[float, ...]
    indexer_n_head: int
    indexer_top_k: int
    n_output_group: int
    n_hash: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        window, n_output_group = keys.integer("attention.sliding_window"), keys.integer(PARTS)
        if window < 1:
            raise keys.unsupported("attention.sliding_window", "at least 1 token")
        if n_output_group < 1 or known.n_head % n_output_group:
            raise keys.unsupported(PARTS, f"a number that divides the {known.n_head} heads")
        ratios = keys.integers(RATIOS, keys.length(RATIOS) or known.n_layer)[: known.n_layer]
        if len(ratios) < known.n_layer or not all(ratio == 0 or 2 <= ratio <= LONGEST for ratio in ratios):
            raise keys.unsupported(RATIOS, f"0 or 2 to {LONGEST} for each of the {known.n_layer} layers")
        n_head, top_k = read_index(keys, known.n_ctx)
        scaled, near = known.rope, Rope(known.rope.n_rot, known.rope.freq_base, scaled=False)
        far = replace(scaled, freq_base=keys.number("attention.compress_rope_freq_base"), attn_factor=1.0)
        if far.ext_factor:  # YaRN's magnitude is left out
            far = replace(far, attn_factor=1.0 / (1.0 - 0.1 * log(far.freq_scale)))
        return cls(
            **vars(replace(known, rope=near, scale=known.head_dim**-0.5)),
            routing=Routing.read(keys, ROOT),
            streams=Streams.read(keys, known.norm_eps),
            window=window,
            ratios=ratios,
            far=far,
            limits=read_limits(keys, known.n_layer),
            shared_limits=read_shared_limits(keys, known.n_layer),
            indexer_n_head=n_head,
            indexer_top_k=top_k,
            n_output_group=n_output_group,
            n_hash=keys.integer("hash_layer_count"),
        )


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    refuse_layer_behind(config, weights)
    ropes = {ratio: RopeTables.of(g, config, ratio) for ratio in sorted(set(config.ratios))}
    x_TSD = embedded(g, config.streams, weights)
    for layer in weights.layers(config.n_layer):
        h_TD, mixed = gather(g, config.streams, layer, x_TSD, "hc_attn")
        h_TD = g.rms_norm(h_TD, layer["attn_norm"], config.norm_eps, "attn_norm")
        ratio = config.ratios[layer.index]
        x_TSD = spread(g, attention(g, config, layer, ropes[ratio], ratio, h_TD), x_TSD, mixed)
        h_TD, mixed = gather(g, config.streams, layer, x_TSD, "hc_ffn")
        h_TD = g.rms_norm(h_TD, layer["ffn_norm"], config.norm_eps, "ffn_norm")
        x_TSD = spread(g, feed_forward(g, config, layer, h_TD), x_TSD, mixed)
    x_TD = last(g, config.streams, weights, x_TSD)
    return weights.logits(g.rms_norm(x_TD, weights["output_norm"], config.norm_eps, "output_norm"))


def refuse_layer_behind(config: Config, weights: Tensors) -> None:
    """Refuse a layer that `nextn_predict_layers` leaves out though it predicts no further tokens."""
    (behind,) = weights.layers([config.n_layer])
    if behind.get("nextn.eh_proj") is None and behind.get("attn_norm") is not None:
        wanted = f"blk.{config.n_layer}.nextn.eh_proj.weight in a layer that predicts further tokens"
        raise ArchitectureError(f"{_config.N_AHEAD}: wanted {wanted}; got a layer without it")


@dataclass(frozen=True)
class RopeTables:
    """Tables of ropes: of the tokens, of where their groups begin, and back."""

    here: Node
    start: Node
    back: Node

    @classmethod
    def of(cls, g: Builder, config: Config, ratio: int) -> Self:
        """Of layers with this compression."""
        rope, name = (config.far, f"rope_{ratio}") if ratio else (config.rope, "rope")

        def table(factor: float, offset: float, kind: str) -> Node:
            moved = g.scale(g.cast(g.positions, "f32"), factor, offset)
            return rope.at(g, g.cast(moved, "i32"), f"{name}_{kind}")

        here = rope.at(g, g.positions, f"{name}_here")
        start = table(1.0, 1.0 - ratio, "start") if ratio else here
        return cls(here, start, table(-1.0, 0.0, "back"))


def attention(g: Builder, config: Config, layer: Layer, ropes: RopeTables, ratio: int, x_TD: Node) -> Node:
    """Attention behind its output projection, [T, D]."""
    narrow_TR = narrow_queries(g, config, layer, x_TD)
    n_head, width = config.n_head, config.head_dim
    q_TNH = g.heads(layer.linear(narrow_TR, "attn_q_b", "q", rows=n_head * width), n_head)
    q_TNH = rotate_last(g, config, ropes.here, g.rms_norm(q_TNH, None, config.norm_eps, "q_heads_norm"))
    k_TH = layer.linear(x_TD, "attn_kv", "kv", rows=width)
    k_TH = g.rms_norm(k_TH, layer["attn_kv_a_norm"], config.norm_eps, "kv_norm")
    k_T1H = rotate_last(g, config, ropes.here, g.heads(k_TH, 1))
    sinks_N, index, scale = layer["attn_sinks"], layer.index, config.scale
    if not ratio:
        y_TE = g.attend(q_TNH, k_T1H, None, index, scale, config.window, sinks=sinks_N)
    else:
        rows_T1H = groups(g, config, layer, ropes, ratio, x_TD, "attn")
        selected = chosen(g, config, layer, ropes, ratio, x_TD, narrow_TR)
        y_TE = g.attend_compressed(
            q_TNH, k_T1H, rows_T1H, index, scale, config.window, ratio, sinks_N, selected
        )
    y_TE = g.flatten(rotate_last(g, config, ropes.back, g.heads(y_TE, config.n_head)))
    return layer.linear(grouped(g, config, layer, y_TE), "attn_output_b", "attn_out")


def groups(
    g: Builder, config: Config, layer: Layer, ropes: RopeTables, ratio: int, x_TD: Node, kind: str
) -> Node:
    """The rows of groups, where their last tokens are, [T, 1, H]; kind: what they are for."""
    name = f"{kind}_compressor"
    bias, norm = layer[f"{name}_ape"], layer[f"{name}_norm"]
    if bias.shape[0] != ratio:
        raise ArchitectureError(f"tensor {bias.name}: wanted {ratio} rows; got {bias.type}")
    bias = g.dequantize(bias)
    x_TE, scores_TE = (
        layer.linear(x_TD, f"{name}_{part}", f"{kind}_group_{part}") for part in ("kv", "gate")
    )
    rows_TH = g.compress(x_TE, scores_TE, bias, layer.index, overlap(layer, kind), kind)
    rows_TH = g.rms_norm(rows_TH, norm, config.norm_eps, f"{kind}_groups_norm")
    return rotate_last(g, config, ropes.start, g.heads(rows_TH, 1))


def overlap(layer: Layer, kind: str) -> bool:
    """Whether groups overlap, by the widths of their tensors; then an index chooses among them."""
    bias, norm = (layer[f"{kind}_compressor_{part}"] for part in ("ape", "norm"))
    return fixed(bias.shape[1]) == 2 * fixed(norm.shape[0])


def chosen(
    g: Builder, config: Config, layer: Layer, ropes: RopeTables, ratio: int, x_TD: Node, narrow_TR: Node
) -> Node | None:
    """The groups that each token sees, [T, top k]; None for all."""
    top_k, n_head = config.indexer_top_k, config.indexer_n_head
    if not 0 < top_k < config.n_ctx // ratio or not overlap(layer, "attn"):
        return None
    rotate = partial(rotate_last, g, config, ropes.here)
    q_TJH, weights_TJ = queries(g, layer, x_TD, narrow_TR, n_head, rotate)
    rows_T1H = groups(g, config, layer, ropes, ratio, x_TD, "indexer")
    return g.select_groups(q_TJH, rows_T1H, weights_TJ, layer.index, top_k, ratio)


def grouped(g: Builder, config: Config, layer: Layer, y_TE: Node) -> Node:
    """Each group of heads times a part of the matrix `attn_output_a`, side by side.

    Files have the parts below each other. Quantised ones have no views: each group is multiplied with all of
    them and its own kept.
    """
    n, matrix = config.n_output_group, layer["attn_output_a"]
    y_TGE = g.heads(y_TE, n)
    if len(matrix.shape) == 2 and fixed(matrix.shape[0]) % n:
        raise ArchitectureError(f"tensor {matrix.name}: wanted {n} parts of rows; got {matrix.type}")
    if len(matrix.shape) == 3 or n == 1:
        return g.flatten(g.per_head(matrix, y_TGE, "attn_parts"))
    rows, width = fixed(matrix.shape[0]) // n, fixed(matrix.shape[1])
    if not matrix.dtype.is_format:
        parts = g.reshape(matrix, n, rows, width, keep=0)
        return g.flatten(g.per_head(parts, y_TGE, "attn_parts"))
    all_TGE = g.mul_mat(matrix, y_TGE)
    all_TE, every = g.flatten(all_TGE), n * rows
    kept = [g.columns(all_TE, i * every + i * rows, i * every + (i + 1) * rows) for i in range(n)]
    return reduce(g.concat, kept)


def feed_forward(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """Experts beside a shared one, [T, D]."""
    ids_TU = None
    if layer.index < config.n_hash:
        table, n_used = layer["ffn_gate_tid2eid"], config.routing.n_used
        if table.shape != (config.n_vocab, n_used):
            wanted = f"{n_used} experts for each of {config.n_vocab} tokens"
            raise ArchitectureError(f"tensor {table.name}: wanted {wanted}; got {table.type}")
        ids_TU = g.cast(g.rows(g.dequantize(table), g.tokens), "i32")
    return shared_and_chosen(
        *(g, config, layer, x_TD),
        product=clamped_swiglu(config.limits[layer.index]),
        shared=clamped_swiglu(config.shared_limits[layer.index]),
        ids_TU=ids_TU,
    )


def last(g: Builder, streams: Streams, weights: Tensors, x_TSD: Node) -> Node:
    """The weighted sum of the streams behind the last layer, [T, D]."""
    flat_TE = g.rms_norm(g.flatten(x_TSD), None, streams.norm_eps)
    mixes_TS = weights.linear(flat_TE, "output_hc_fn", rows=streams.n)
    scale, base_S = vector(weights, "output_hc_scale", 1), vector(weights, "output_hc_base", streams.n)
    mixes_TS = g.add(g.mul(mixes_TS, scale), base_S)
    return total(g, x_TSD, g.scale(g.sigmoid(mixes_TS), 1.0, streams.eps))


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests: layers with a window, with overlapping groups and with others; two streams."""
    keys: Metadata = {
        "attention.head_count_kv": 1, "attention.key_length": 16, "attention.sliding_window": 20,
        "rope.dimension_count": 8, "attention.compress_rope_freq_base": 500.0, RATIOS: [0, 4, 8], PARTS: 2,
        "hash_layer_count": 1, "expert_gating_func": ROOT, "expert_weights_norm": True,
        "expert_weights_scale": 1.5, LIMITS: 0.5, f"{INDEX}.head_count": 16, f"{INDEX}.top_k": 6,
    }  # fmt: skip
    hyper, layer = _streams.sampled(2)
    layer |= {
        **shared_expert(), "exp_probs_b.bias": (5,), "attn_sinks.weight": (4,), "attn_q_a.weight": (40, 64),
        "attn_q_a_norm.weight": (40,), "attn_q_b.weight": (64, 40), "attn_kv.weight": (16, 64),
        "attn_kv_a_norm.weight": (16,), "attn_output_a.weight": (24, 32), "attn_output_b.weight": (64, 24),
    }  # fmt: skip
    top: Shapes = {
        "output_hc_fn.weight": (2, 128), "output_hc_base.weight": (2,), "output_hc_scale.weight": (1,),
        "blk.0.ffn_gate_tid2eid.weight": (80, 2), "blk.1.indexer.attn_q_b.weight": (256, 40),
        "blk.1.indexer.proj.weight": (16, 64), **sampled_groups("blk.1.attn", 4, 32),
        **sampled_groups("blk.1.indexer", 4, 32), **sampled_groups("blk.2.attn", 8, 16),
    }  # fmt: skip
    gone = ("blk.0.exp_probs_b.bias", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight")
    return [
        transformer(name, n_expert=5, layer=layer, metadata=keys | hyper, top=top, without=gone, n_layer=3)
    ]


def sampled_groups(name: str, ratio: int, width: int) -> Shapes:
    """The tensors that make rows of 16 elements of groups."""
    return {f"{name}_compressor_{part}.weight": shape for part, shape in (
        ("kv", (width, 64)), ("gate", (width, 64)), ("ape", (ratio, width)), ("norm", (16,)),
    )}  # fmt: skip
