"""The lightning index (DeepSeek-V3.2, 2025, arXiv:2512.02556): small heads choose the tokens that are seen.

Knows how tokens are scored; nothing of the attention that sees them. T tokens, D model width, R width of the
narrow value that queries are made of, J heads of the index, H their width.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Keys, Layer
from graphml_models._samples import Metadata, Shapes

INDEX = "attention.indexer"
INDEX_EPS = 1e-6

Rotate = Callable[[Node], Node]


def read_index(keys: Keys, n_ctx: int) -> tuple[int, int]:
    """Heads of the index, and how many tokens each token sees; 0 if no text is longer."""
    n_head, top_k = keys.integer(f"{INDEX}.head_count"), keys.integer(f"{INDEX}.top_k")
    if n_head < 1:
        raise keys.unsupported(f"{INDEX}.head_count", "at least 1 head")
    if top_k < 1:
        raise keys.unsupported(f"{INDEX}.top_k", "at least 1 token")
    return n_head, top_k if top_k < n_ctx else 0


def index(
    g: Builder,
    layer: Layer,
    x_TD: Node,
    narrow_TR: Node,
    n_head: int,
    top_k: int,
    rotate: Rotate,
    eps: float = INDEX_EPS,
) -> Node:
    """The tokens that each token sees, [T, 1, top_k]; rotate: heads [T, J or 1, H], by position."""
    q_TJH, weights_TJ = queries(g, layer, x_TD, narrow_TR, n_head, rotate)
    k_TH = layer.linear(x_TD, "indexer.attn_k", "index_k")
    norm_H, bias_H = layer["indexer.k_norm"], layer.get("indexer.k_norm.bias")
    k_T1H = g.heads(g.layer_norm(k_TH, norm_H, bias_H, eps, "index_norm"), 1)
    return g.select(q_TJH, rotate(k_T1H), layer.index, top_k, weights=weights_TJ)


def queries(
    g: Builder, layer: Layer, x_TD: Node, narrow_TR: Node, n_head: int, rotate: Rotate
) -> tuple[Node, Node]:
    """What each token looks for, [T, J, H], and how much each head counts, [T, J]."""
    q_TJH = g.heads(layer.linear(narrow_TR, "indexer.attn_q_b", "index_q"), n_head)
    weights_TJ = layer.linear(x_TD, "indexer.proj", "index_weights", rows=n_head)
    return rotate(q_TJH), g.scale(weights_TJ, (fixed(q_TJH.shape[2]) * n_head) ** -0.5)


def sampled(*layers: int) -> tuple[Metadata, Shapes]:
    """Metadata and tensors of an index of 3 heads over queries of 40, in these layers of a sample."""
    shapes: Shapes = {"attn_q_b.weight": (48, 40), "attn_k.weight": (16, 64), "k_norm.weight": (16,),
                      "k_norm.bias": (16,), "proj.weight": (3, 64)}  # fmt: skip
    keys: Metadata = {f"{INDEX}.head_count": 3, f"{INDEX}.top_k": 20}
    return keys, {f"blk.{i}.indexer.{part}": shape for i in layers for part, shape in shapes.items()}
