"""LFM2 (Liquid AI 2025, arXiv:2511.23404): short gated convolutions, and attention in some layers.

T tokens, D model width, N heads, K key-value heads, H head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, SampleModel
from graphml_models import _config, llama
from graphml_models._attention import norm_heads, rotated_heads
from graphml_models._hybrid import convolution, hybrid, read_heads
from graphml_models._samples import Metadata, Shapes
from graphml_models._windows import SIZE


@dataclass(frozen=True)
class Config(_config.Config):
    """And the layers with attention, of the last `window` tokens (0: all); tokens in a convolution."""

    attends: tuple[bool, ...]
    window: int
    n_conv: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        return cls(**vars(replace(without_window(keys), window=keys.integer(SIZE, 0))))


def without_window(keys: Keys) -> Config:
    """The configuration whose attention sees all, whatever the file says."""
    heads, attends = read_heads(keys)
    known = _config.read(keys, heads=heads)
    return Config(**vars(known), attends=attends, window=0, n_conv=keys.integer("shortconv.l_cache"))


def mixer(g: Builder, config: Config, layer: Layer, table: Node, x_TD: Node) -> Node:
    """Attention over normed heads, or a convolution, before the output projection, [T, D]."""
    if config.attends[layer.index]:
        q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, "neox", norm_heads)
        return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, config.window)
    width = config.n_embd
    three = layer.linear(x_TD, "shortconv.in_proj", "gates", rows=3 * width)
    before_TD, after_TD, x_TD = (g.columns(three, i * width, (i + 1) * width) for i in range(3))
    seen_TD = convolution(g, layer, "shortconv.conv", g.mul(before_TD, x_TD), config.n_conv)
    return g.mul(after_TD, seen_TD, "gated")


def out(layer: Layer, h_TD: Node) -> Node:
    """The projection behind a layer's attention or convolution."""
    return layer.linear(h_TD, "attn_output" if layer.get("attn_output") else "shortconv.out_proj", "attn_out")


build = partial(
    llama.build,
    attention=mixer,
    project=out,
    feed_forward=partial(llama.feed_forward, scaled=False),
    output_norm="token_embd_norm",
)

MEMORY: Shapes = {
    "shortconv.in_proj.weight": (192, 64),
    "shortconv.conv.weight": (64, 3),
    "shortconv.out_proj.weight": (64, 64),
}
KEYS: Metadata = {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3}
TOP: Shapes = {"token_embd_norm.weight": (64,)}


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests with a window shorter than the texts it reads."""
    keys = {**KEYS, SIZE: 40, "attention.head_count_kv": [0, 2, 2]}
    gone = ("output_norm.weight",)
    return [hybrid(name, MEMORY, n_layer=3, metadata=keys, top=TOP, without=gone)]
