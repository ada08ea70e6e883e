"""Chameleon (Chameleon Team 2024, arXiv:2405.09818), on text alone: llama with a layer norm of each head.

The 34B model has its norms behind the blocks. Ids of pieces of pictures are never the answer, as in
transformers. llama.cpp differs in both: that model's feed-forward reads no residual, and of a step's output
rows the first alone is without those ids. T tokens, O output rows, D model width, N heads, K key-value
heads, H head width, P ids of pieces of pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer, SampleModel, Tensors
from graphml_models import _attention, _config, ernie4_5, llama
from graphml_models._samples import HEAD_DIM, N_HEAD, Shapes, transformer

HEAD_EPS = 1e-5  # of the heads' norms; files do not say it
PICTURES = 4, 8196  # ids of pieces of pictures, and the first behind them; files do not say them
BEHIND = {"post_attention_norm": "attn_norm", "post_ffw_norm": "ffn_norm"}  # the same tensors in both models


@dataclass(frozen=True)
class Config(_config.Config):
    """And whether norms are behind the blocks."""

    swin_norm: bool

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        return cls(**vars(_config.read(keys)), swin_norm=keys.boolean("swin_norm", False))


def norm_heads(
    g: Builder, config: _config.Config, layer: Layer, q_TNH: Node, k_TKH: Node
) -> tuple[Node, Node]:
    """Each head's layer norm of q and k."""
    return head_norm(g, layer, q_TNH, "q_norm"), head_norm(g, layer, k_TKH, "k_norm")


def head_norm(g: Builder, layer: Layer, x_TNH: Node, name: str) -> Node:
    """Each head's layer norm, with weights [N, H] and a bias of this shape if there is one."""
    x_TNH = g.layer_norm(x_TNH, g.dequantize(layer[f"attn_{name}"]), None, HEAD_EPS, name)
    bias_NH = layer.get(f"attn_{name}.bias")
    return x_TNH if bias_NH is None else g.add(x_TNH, g.dequantize(bias_NH))


attention = partial(_attention.attention, norm=norm_heads)


def norm(g: Builder, config: Config, tensors: Tensors, x: Node, tensor: str, name: str) -> Node:
    """As `llama.rms_norm`."""
    return llama.rms_norm(g, config, tensors, x, BEHIND.get(tensor, tensor), name)


def build(g: Builder, config: Config, weights: Tensors) -> Node:
    """Logits [O, vocabulary]."""
    norms: llama.Norms = "after" if config.swin_norm else "before"
    logits = llama.build(g, config, weights, attention, ernie4_5.feed_forward, norms=norms, norm=norm)
    (first, end), n_vocab = PICTURES, fixed(logits.shape[1])
    if n_vocab <= end:  # too few ids to have those of pictures
        return logits
    never_OP = g.scale(g.columns(logits, first, end), 0.0, float("-inf"))
    text = g.columns(logits, 0, first), g.columns(logits, end, n_vocab)
    return g.concat(g.concat(text[0], never_OP), text[1], "text_alone")


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests, whose few ids are all of text."""
    norms: Shapes = {}
    for part, count in (("attn_q_norm", N_HEAD), ("attn_k_norm", 2)):
        norms |= {f"{part}.weight": (count, HEAD_DIM), f"{part}.bias": (count, HEAD_DIM)}
    return [
        transformer(name, layer=norms),
        transformer(name, "behind", layer=norms, metadata={"swin_norm": True}),
    ]
