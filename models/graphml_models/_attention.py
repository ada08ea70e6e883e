"""What attention is made of in many architectures: projections to heads, norms of q and k, rotation.

T tokens, D model width, N heads, K key-value heads, H head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphml.errors import ArchitectureError
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.shape import fixed
from graphml.loading.architecture import Layer
from graphml_models._config import Config

HeadNorm = Callable[[Builder, Config, Layer, Node, Node], tuple[Node, Node]]
"""A norm of q and k, `norm_heads` or `norm_rows`."""


def project(
    g: Builder, config: Config, layer: Layer, x_TD: Node, clamp: float = 0.0, head_dim_v: int = 0
) -> tuple[Node, Node, Node]:
    """Heads q [T, N, H], k and v [T, K, H] by `attn_q`, `attn_k`, `attn_v`, or one `attn_qkv` with all rows.

    clamp: where above 0, no number of q, k and v is further from 0; head_dim_v: width of heads of v, where it
    is another than that of q and k.
    """
    if layer.get("attn_qkv"):
        parts = fused_qkv(g, config, layer, x_TD, head_dim_v)
    else:
        widths = _widths(config, head_dim_v)
        parts = [layer.linear(x_TD, f"attn_{name}", name, rows=width) for name, width in widths.items()]
    if clamp > 0.0:
        parts = [g.clamp(part, -clamp, clamp) for part in parts]
    return to_heads(g, config, parts)


def fused_qkv(
    g: Builder, config: Config, layer: Layer, x_TD: Node, head_dim_v: int = 0, scaled: bool = True
) -> list[Node]:
    """Rows q [T, N * H], k and v [T, K * H] of one `attn_qkv`; scaled: see `Tensors.scale`."""
    widths, start, parts = _widths(config, head_dim_v), 0, []
    qkv = layer.linear(x_TD, "attn_qkv", "qkv", scaled=scaled, rows=sum(widths.values()))
    for name, width in widths.items():
        parts.append(g.columns(qkv, start, start + width, name))
        start += width
    return parts


def to_heads(g: Builder, config: Config, parts: Sequence[Node]) -> tuple[Node, Node, Node]:
    """Rows of q, k and v as heads."""
    counts = config.n_head, config.n_head_kv, config.n_head_kv
    q_TNH, k_TKH, v_TKH = (g.heads(part, count) for part, count in zip(parts, counts, strict=True))
    return q_TNH, k_TKH, v_TKH


def _widths(config: Config, head_dim_v: int) -> dict[str, int]:
    """Elements of all heads of q, k and v."""
    kv = config.n_head_kv
    return {
        "q": config.n_head * config.head_dim, "k": kv * config.head_dim,
        "v": kv * (head_dim_v or config.head_dim),
    }  # fmt: skip


def norm_heads(g: Builder, config: Config, layer: Layer, q_TNH: Node, k_TKH: Node) -> tuple[Node, Node]:
    """RMS norm of each head of q and k (Henry et al. 2020, arXiv:2010.04245)."""
    q_TNH = g.rms_norm(q_TNH, g.dequantize(layer["attn_q_norm"]), config.norm_eps, "q_norm")
    return q_TNH, g.rms_norm(k_TKH, g.dequantize(layer["attn_k_norm"]), config.norm_eps, "k_norm")


def norm_rows(g: Builder, config: Config, layer: Layer, q_TNH: Node, k_TKH: Node) -> tuple[Node, Node]:
    """RMS norm over all heads of q, and of k, together."""

    def norm(x: Node, name: str) -> Node:
        row = g.rms_norm(g.flatten(x), layer[f"attn_{name}_norm"], config.norm_eps, f"{name}_norm")
        return g.heads(row, fixed(x.shape[1]))

    return norm(q_TNH, "q"), norm(k_TKH, "k")


def rotate(g: Builder, table: Node, mode: str, q_TNH: Node, k_TKH: Node) -> tuple[Node, Node]:
    """Heads q and k with their positions; mode: pairs of neighbours (`norm`) or of halves (`neox`)."""
    return g.rope(q_TNH, table, mode, "q_rope"), g.rope(k_TKH, table, mode, "k_rope")


def rotate_last(g: Builder, config: Config, table: Node, x_TNH: Node, mode: str = "norm") -> Node:
    """Heads of which the last columns alone have positions, as many as rotate; mode: see `rotate`."""
    width, n_rot = fixed(x_TNH.shape[2]), config.rope.n_rot
    if width < n_rot:
        raise ArchitectureError(f"rope.dimension_count: wanted at most {width}, a head's width; got {n_rot}")
    if width == n_rot:
        return g.rope(x_TNH, table, mode)
    rotated = g.rope(g.columns(x_TNH, width - n_rot, width), table, mode)
    return g.concat(g.columns(x_TNH, 0, width - n_rot), rotated)


def rotated_heads(
    g: Builder, config: Config, layer: Layer, table: Node | None, x_TD: Node, mode: str,
    norm: HeadNorm | None = None, clamp: float = 0.0,
) -> tuple[Node, Node, Node]:  # fmt: skip
    """Heads q [T, N, H], k and v [T, K, H] as `project` gives them, q and k normed, then rotated.

    table: of the rope, None for no positions; mode: see `rotate`; clamp: see `project`.
    """
    q_TNH, k_TKH, v_TKH = project(g, config, layer, x_TD, clamp)
    if norm is not None:
        q_TNH, k_TKH = norm(g, config, layer, q_TNH, k_TKH)
    if table is not None:
        q_TNH, k_TKH = rotate(g, table, mode, q_TNH, k_TKH)
    return q_TNH, k_TKH, v_TKH


def attention(
    g: Builder, config: Config, layer: Layer, table: Node | None, x_TD: Node, mode: str = "norm",
    norm: HeadNorm | None = None, window: int = 0,
) -> Node:  # fmt: skip
    """Grouped-query attention before its output projection, [T, N * H]; arguments as of `rotated_heads`.

    window: see `Builder.attend`.
    """
    q_TNH, k_TKH, v_TKH = rotated_heads(g, config, layer, table, x_TD, mode, norm)
    return g.attend(q_TNH, k_TKH, v_TKH, layer.index, config.scale, window)
