"""Qwen4 (Qwen Team 2026, "Qwen4", as first shown): qwen35moe with streams of residuals and n-gram embeddings.

A block reads a gated mean of S streams and writes to each with a weight of its own (hyper-connections: Zhu et
al. 2024, arXiv:2409.19606). One layer adds rows of a table that the last tokens' hashes find. Attention would
choose among more than `attention.indexer.top_k` tokens (`indexer.*`, unused here): the context is no longer
than that, and all of it is seen. T tokens, D model width, E all streams'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _delta_net, qwen3next, qwen35
from graphml_models._delta_net import GATED_HEADS, KEYS, TENSORS, attention, delta_net
from graphml_models._hybrid import hybrid
from graphml_models._index import INDEX
from graphml_models._rope import read_sections
from graphml_models._samples import SECTIONS, Metadata, Shapes, shared_expert
from graphml_models._streams import HYPER, total

COUNT, PLE_LAYERS = f"{HYPER}.count", "ple.layers"


@dataclass(frozen=True)
class Ngrams:
    """Where the rows of a table come in, and the hashes of the last tokens that find them."""

    layer: int
    n_conv: int
    eos: int
    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]

    @classmethod
    def read(cls, keys: Keys, n_layer: int) -> Self | None:
        """From the file's metadata; None where it has no such table."""
        if not keys.has(PLE_LAYERS):
            return None
        (layer,) = keys.integers(PLE_LAYERS, 1)
        n, each = keys.integer("ple.ngram_size"), keys.integer("ple.heads_per_ngram")
        if not (0 <= layer < n_layer and 2 <= n <= 16 and 1 <= each <= 64):
            raise keys.unsupported(
                PLE_LAYERS, f"a layer of {n_layer}, and hashes of 2 to 16 tokens, 1 to 64 each"
            )
        sizes, offsets = (
            keys.integers(f"ple.head_{what}", (n - 1) * each) for what in ("vocab_sizes", "offsets")
        )
        multipliers = keys.integers("ple.layer_multipliers", n)
        return cls(
            layer,
            keys.integer("ple.conv_kernel"),
            keys.integer("ple.eos_token_id"),
            multipliers,
            sizes,
            offsets,
        )


@dataclass(frozen=True)
class Config(qwen3next.Config):
    """And the streams of residuals, and what the last tokens' hashes find, if anything."""

    n_stream: int
    ngrams: Ngrams | None

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        read_sections(keys)
        known = qwen3next.Config.read(keys)
        known = replace(known, n_ctx=min(known.n_ctx, keys.integer(f"{INDEX}.top_k")))
        n_stream = keys.integer(COUNT)
        if not 2 <= n_stream <= 64:
            raise keys.unsupported(COUNT, "2 to 64 streams")
        return cls(**vars(known), n_stream=n_stream, ngrams=Ngrams.read(keys, known.n_layer))


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]; biases of queries, keys and values are left out, as in llama.cpp."""
    plain = weights.without("*.attn_[qkv].bias")
    table = config.rope.table(g, plain)
    x_TSD = g.repeat(g.heads(g.embed(plain["token_embd"], g.tokens), 1), config.n_stream)
    for layer in plain.layers(config.n_layer):
        if config.ngrams is not None and layer.index == config.ngrams.layer:
            x_TSD = add_ngrams(g, config, config.ngrams, plain, layer, x_TSD)
        h_TD, normed_TE = gather(g, config, layer, x_TSD, "hc_attn")
        if config.attends[layer.index]:
            h_TD = attention(g, config, layer, table, h_TD)
        else:
            h_TD = delta_net(g, config, layer, qwen35.inputs(layer, h_TD), activation=Builder.sigmoid)
        x_TSD = spread(g, layer, x_TSD, _delta_net.out(layer, h_TD), normed_TE, "hc_attn")
        h_TD, normed_TE = gather(g, config, layer, x_TSD, "hc_ffn")
        x_TSD = spread(g, layer, x_TSD, qwen3next.feed_forward(g, config, layer, h_TD), normed_TE, "hc_ffn")
    return plain.logits(gather(g, config, plain, x_TSD, "output_hc")[0])


def gather(g: Builder, config: Config, tensors: Tensors, x_TSD: Node, name: str) -> tuple[Node, Node]:
    """What a block reads, the mean of the streams, normed and gated, [T, D]; and the normed ones, [T, E]."""
    width, n = fixed(x_TSD.shape[2]), config.n_stream
    norm_SD = g.reshape(g.dequantize(tensors[f"{name}_norm"]), n, width, keep=0)
    normed_TE = g.flatten(g.rms_norm(x_TSD, norm_SD, config.norm_eps, f"{name}_norm"))
    narrow = g.silu(g.scale(tensors.linear(normed_TE, f"{name}_down"), 1.0 / n))
    gate_TE = g.sigmoid(tensors.linear(narrow, f"{name}_up"), f"{name}_gate")
    gated_TSD = g.heads(g.mul(normed_TE, gate_TE), n)
    return g.scale(total(g, gated_TSD), 1.0 / n, name=f"{name}_mean"), normed_TE


def spread(g: Builder, layer: Tensors, x_TSD: Node, y_TD: Node, normed_TE: Node, name: str) -> Node:
    """The streams behind a block, each plus what it gives times a weight between 0 and 2, [T, S, D]."""
    n = fixed(x_TSD.shape[1])
    weights_TS = g.sigmoid(g.scale(layer.linear(normed_TE, f"{name}_inject", rows=n), 1.0 / n))
    weights_TS1 = g.reshape(g.scale(weights_TS, 2.0, name=f"{name}_write"), n, 1)
    return g.add(x_TSD, g.mul(g.repeat(g.heads(y_TD, 1), n), weights_TS1), f"{name}_streams")


def add_ngrams(
    g: Builder, config: Config, ngrams: Ngrams, weights: Tensors, layer: Layer, x_TSD: Node
) -> Node:
    """The streams plus the rows that the last tokens find, gated by how they agree, and their convolution."""
    n, width = config.n_stream, config.n_embd

    def normed(y_TSD: Node, name: str) -> Node:
        return g.rms_norm(
            y_TSD, g.reshape(g.dequantize(layer[name]), n, width, keep=0), config.norm_eps, name
        )

    ids_TH = g.ngram_rows(ngrams.multipliers, ngrams.sizes, ngrams.offsets, ngrams.eos, "ngram_rows")
    table, most = (
        weights["per_layer_token_embd"],
        max(map(sum, zip(ngrams.offsets, ngrams.sizes, strict=True))),
    )
    if fixed(table.shape[0]) < most:
        raise ArchitectureError(
            f"tensor {table.name}: wanted {most} rows, as the hashes reach; got {table.type}"
        )
    rows_TF = g.flatten(g.rows(table, ids_TH, "ngram_embedding"))
    key_TSD = normed(g.heads(layer.linear(rows_TF, "ple_key"), n), "ple_norm_key")
    scores_TS1 = g.sum_rows(g.mul(key_TSD, normed(x_TSD, "ple_norm_query")))
    scores_TS1 = g.scale(scores_TS1, width**-0.5)
    size_TS1 = g.absolute(scores_TS1)
    sign_TS1 = g.div(scores_TS1, g.clamp(size_TS1, 1e-30, float("inf")))
    gate_TS1 = g.sigmoid(g.mul(sign_TS1, g.sqrt(g.clamp(size_TS1, 1e-6, float("inf")))), "ple_gate")
    value_TSD = g.repeat(g.heads(layer.linear(rows_TF, "ple_value"), 1), n)
    gated_TSD = g.mul(value_TSD, gate_TS1, "ple_gated")
    seen_TE = g.ssm_conv(
        g.flatten(normed(gated_TSD, "ple_norm_conv")),
        spaced(g, ngrams, layer, n * width),
        None,
        layer.index,
        "ple",
    )
    return g.add(x_TSD, g.add(gated_TSD, g.heads(g.silu(seen_TE), n)), "with_ngrams")


def spaced(g: Builder, ngrams: Ngrams, layer: Layer, n_channel: int) -> Node:
    """The convolution's weights, n tokens apart and zeros between, [channels, (n_conv - 1) * n + 1]."""
    apart, n_conv = len(ngrams.multipliers), ngrams.n_conv
    weight_E1 = g.reshape(g.dequantize(layer["ple_conv1d"]), n_channel, n_conv, 1, keep=0)
    zeros = g.scale(weight_E1, 0.0)
    for _ in range(apart - 1):
        weight_E1 = g.concat(weight_E1, zeros)
    flat = g.reshape(weight_E1, n_channel, n_conv * apart, keep=0)
    return g.columns(flat, 0, (n_conv - 1) * apart + 1)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, with n-gram embeddings and without."""
    both = {"ffn_gate_up_exps.weight": (5, 192, 64), "ffn_gate_inp_shexp.weight": (64,)}
    keys = {**KEYS, **SECTIONS, "full_attention_interval": 2, COUNT: 2, f"{INDEX}.top_k": 96}
    gone = (".ffn_norm.weight", ".attn_norm.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight",
            "output_norm.weight", "post_attention_norm.weight")  # fmt: skip
    streams: Shapes = {"norm.weight": (2, 64), "down.weight": (6, 128), "up.weight": (128, 6)}
    layer = {**shared_expert(), **both} | {
        f"hc_{block}_{part}": shape
        for block in ("attn", "ffn")
        for part, shape in {**streams, "inject.weight": (2, 128)}.items()
    }
    head: Shapes = {f"output_hc_{part}": shape for part, shape in streams.items()}
    table: Shapes = {
        "per_layer_token_embd.weight": (40, 16), "blk.0.ple_key.weight": (128, 64),
        "blk.0.ple_value.weight": (64, 64), "blk.0.ple_norm_key.weight": (2, 64),
        "blk.0.ple_norm_query.weight": (2, 64), "blk.0.ple_norm_conv.weight": (2, 64),
        "blk.0.ple_conv1d.weight": (128, 3),
    }  # fmt: skip
    hashes: Metadata = {
        PLE_LAYERS: [0], "ple.ngram_size": 3, "ple.heads_per_ngram": 2, "ple.conv_kernel": 3,
        "ple.eos_token_id": 2,
        "ple.layer_multipliers": [1, 31, 1009], "ple.head_offsets": [0, 7, 18, 29],
        "ple.head_vocab_sizes": [7, 11, 11, 11],
    }  # fmt: skip
    model = partial(hybrid, name, TENSORS, GATED_HEADS, n_expert=5, layer=layer, without=gone)
    return [
        model(name="ngrams", metadata={**keys, **hashes}, top={**head, **table}),
        model(name="plain", metadata=keys, top=head),
    ]
