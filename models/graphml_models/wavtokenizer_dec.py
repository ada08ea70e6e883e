"""WavTokenizer's decoder (Ji et al. 2024, arXiv:2408.16532): codes of sound to spectra, by convolutions.

Convolutions, one attention, and norms over a whole text (a position net), then blocks of ConvNeXt (Liu et al.
2022, arXiv:2201.03545). T tokens, D width, G groups, K taps of a convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Self

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _config
from graphml_models._config import LAYER_EPS
from graphml_models._layer_norm import norm
from graphml_models._samples import Metadata, Shapes
from graphml_models.rwkv6 import row

CAUSAL, OUTPUT = False, "embeddings"
POSITIONS, BLOCKS, GROUPS = "posnet.block_count", "convnext.block_count", "attention.group_norm_groups"
WIDE = 7  # taps of the first convolution and of those by channel
ATTENTION, NORM = 2, 5  # of the position net's layers; the others are two convolutions each


@dataclass(frozen=True)
class Config(_config.Config):
    """And the width, numbers of layers of both parts, groups of the norms over texts, and their eps."""

    width: int
    n_position: int
    n_block: int
    n_group: int
    group_eps: float

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys, eps=LAYER_EPS)
        n_position, n_block, n_group = (keys.integer(key) for key in (POSITIONS, BLOCKS, GROUPS))
        if not 0 <= n_position <= NORM + 1:
            raise keys.unsupported(POSITIONS, f"at most {NORM + 1} layers")
        if not 0 <= n_block <= _config.MAX_LAYERS:
            raise keys.unsupported(BLOCKS, f"at most {_config.MAX_LAYERS} layers")
        width = keys.integer("posnet.embedding_length")
        if n_group < 1 or width % n_group:
            raise keys.unsupported(GROUPS, f"a number that divides the width {width}")
        eps = keys.number("attention.group_norm_epsilon")
        return cls(
            **vars(known),
            width=width,
            n_position=n_position,
            n_block=n_block,
            n_group=n_group,
            group_eps=eps,
        )


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Rows of spectra, one for each code, [T, embedding_length]."""
    table = weights["token_embd"]
    if table.shape[0] != config.n_vocab:
        raise ArchitectureError(f"tensor {table.name}: wanted {config.n_vocab} rows; got {table.type}")
    x_TD = convolved(g, config, weights, g.embed(table, g.tokens), "conv1d", WIDE)
    for layer in weights.layers(config.n_position, prefix="posnet"):
        x_TD = position_layer(g, config, layer, x_TD)
    x_TD = norm(weights, x_TD, "token_embd_norm", config.norm_eps)
    for layer in weights.layers(config.n_block, prefix="convnext"):
        h_TD = norm(layer, by_channel(g, layer, x_TD, "dw"), "norm", config.norm_eps)
        h_TD = layer.linear(g.gelu(layer.linear(h_TD, "pw1", "up")), "pw2", "down")
        x_TD = g.add(x_TD, g.mul(h_TD, layer["gamma"]), "block_residual")
    x_TD = norm(weights, x_TD, "output_norm", config.norm_eps)
    return weights.linear(x_TD, "output", "spectra", rows=config.n_embd)


def position_layer(g: Builder, config: Config, layer: Layer, x_TD: Node) -> Node:
    """A layer of the position net."""
    if layer.index == NORM:
        return text_norm(g, config, layer, x_TD, "attn_norm")
    if layer.index == ATTENTION:
        h_TD = text_norm(g, config, layer, x_TD, "attn_norm")
        q_T1D, k_T1D, v_T1D = (
            g.heads(convolved(g, config, layer, h_TD, f"attn_{part}", 1), 1) for part in "qkv"
        )
        h_TD = g.attend(q_T1D, k_T1D, v_T1D, layer.index, fixed(h_TD.shape[1]) ** -0.5)
        return g.add(x_TD, convolved(g, config, layer, h_TD, "attn_output", 1), "attn_residual")
    h_TD = x_TD
    for i in (1, 2):
        h_TD = g.silu(text_norm(g, config, layer, h_TD, f"norm{i}"))
        h_TD = convolved(g, config, layer, h_TD, f"conv{i}", 3)
    return g.add(x_TD, h_TD, "conv_residual")


def convolved(g: Builder, config: Config, tensors: Tensors, x_TD: Node, name: str, taps: int) -> Node:
    """A convolution over the text, with zeros beyond its ends."""
    matrix = tensors[name]
    n_out, n_in = config.width, fixed(x_TD.shape[1])
    check_shape(matrix, n_out, n_in, taps)
    around_TDK = g.neighbours(x_TD, taps // 2) if taps > 1 else x_TD
    flat = g.reshape(g.dequantize(matrix), n_out, n_in * taps, keep=0)
    y_TE = g.mul_mat(flat, g.flatten(around_TDK) if taps > 1 else around_TDK)
    return g.add(y_TE, row(g, tensors, f"{name}.bias", n_out), name)


def by_channel(g: Builder, tensors: Tensors, x_TD: Node, name: str) -> Node:
    """A convolution of each channel alone."""
    matrix, width = tensors[name], fixed(x_TD.shape[1])
    check_shape(matrix, width, 1, WIDE)
    flat = g.reshape(g.dequantize(matrix), width, WIDE, keep=0)
    weighted_TDK = g.mul(g.neighbours(x_TD, WIDE // 2), flat)
    y_TD = g.reshape(g.sum_rows(weighted_TDK), width)
    return g.add(y_TD, row(g, tensors, f"{name}.bias", width), name)


def check_shape(matrix: Node, *wanted: int) -> None:
    """Refuse a convolution of other outputs, inputs or taps."""
    if matrix.shape != wanted:
        raise ArchitectureError(f"tensor {matrix.name}: wanted {list(wanted)}; got {matrix.type}")


def text_norm(g: Builder, config: Config, tensors: Tensors, x_TD: Node, name: str) -> Node:
    """Each group of channels with mean 0 and variance 1 over a whole text, times weights, plus biases."""
    width, n = fixed(x_TD.shape[1]), config.n_group

    def mean(x_TGH: Node) -> Node:
        of_token_TG = g.scale(g.reshape(g.sum_rows(x_TGH), n), n / width)
        return g.reshape(g.text_means(of_token_TG), n, 1)

    x_TGH = g.heads(x_TD, n)
    centred_TGH = g.sub(x_TGH, mean(x_TGH))
    spread_TG1 = g.sqrt(g.scale(mean(g.sqr(centred_TGH)), 1.0, config.group_eps))
    normed_TD = g.mul(g.flatten(g.div(centred_TGH, spread_TG1)), row(g, tensors, name, width))
    return g.add(normed_TD, row(g, tensors, f"{name}.bias", width), name)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests: all kinds of layers, two blocks."""
    keys: Metadata = {
        "context_length": 128, "vocab_size": 80, "features_length": 24, "embedding_length": 20,
        "block_count": 6, "feed_forward_length": 96, "attention.head_count": 4, LAYER_EPS: 1e-6, GROUPS: 4,
        "attention.group_norm_epsilon": 1e-6, "posnet.embedding_length": 32, POSITIONS: 6,
        "convnext.embedding_length": 32, BLOCKS: 2,
    }  # fmt: skip
    tensors: Shapes = {
        "token_embd.weight": (80, 24), "conv1d.weight": (32, 24, 7), "conv1d.bias": (32, 1),
        "output.weight": (20, 32), "output.bias": (20,),
        **{f"{part}_norm.{kind}": (32,) for part in ("token_embd", "output") for kind in ("weight", "bias")},
    }  # fmt: skip
    for i, j in product((0, 1, 3, 4), (1, 2)):
        tensors |= {f"posnet.{i}.norm{j}.{kind}": (32, 1) for kind in ("weight", "bias")}
        tensors |= {f"posnet.{i}.conv{j}.weight": (32, 32, 3), f"posnet.{i}.conv{j}.bias": (32, 1)}
    for i in (ATTENTION, NORM):
        tensors |= {f"posnet.{i}.attn_norm.{kind}": (32, 1) for kind in ("weight", "bias")}
    for part in ("q", "k", "v", "output"):
        tensors |= {f"posnet.2.attn_{part}.weight": (32, 32, 1), f"posnet.2.attn_{part}.bias": (32, 1)}
    block: Shapes = {
        "dw.weight": (32, 1, 7), "dw.bias": (32, 1), "norm.weight": (32,), "norm.bias": (32,),
        "pw1.weight": (96, 32), "pw1.bias": (96,), "pw2.weight": (32, 96), "pw2.bias": (32,),
        "gamma.weight": (32,),
    }  # fmt: skip
    tensors |= {f"convnext.{i}.{part}": shape for i in range(2) for part, shape in block.items()}
    return [SampleModel("plain", {f"{name}.{key}": value for key, value in keys.items()}, tensors)]
